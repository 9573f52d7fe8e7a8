"""Rules of gateways and bridges: import and export filters, subject mapping, membership. Pure."""

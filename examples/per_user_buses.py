"""A bus for each user below the bus of the machine: what crosses, and who speaks to whom, whichever bus they are on.

Try: python examples/per_user_buses.py
"""

import os
import tempfile

from sbuslib import Client, Hub, Limits, Relay


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Hub(os.path.join(folder, "machine"), limits=Limits(settle=0.05)) as top,
    ):
        # On a real host each of these is a process of its user: `sbus hub units sbus-tenant@.service`.
        hubs = {name: Hub(os.path.join(folder, name)) for name in ("alice", "bob")}
        for name, hub in hubs.items():
            hub.start()
            Relay(hub, top.address, import_=[b"host/"], export=[b"tenants/%b/" % name.encode()]).start().wait(10)

        with (
            Client(top.address) as operator,
            Client(hubs["alice"].address) as alice,
            Client(hubs["bob"].address) as bob,
        ):
            tenants = operator.subscribe(b"tenants/")
            of_bob, of_alice = bob.subscribe(b""), alice.subscribe(b"host/")
            # Not only on the own hub: everywhere in the tree.
            print("in force in the whole", operator.sync("tree"), bob.sync("tree"), alice.sync("tree"))

            alice.publish(b"tenants/alice/mail", b"3 unread")
            message = tenants.receive(timeout=10)
            print("the operator sees", message.key.decode(), message.payload.decode())

            operator.publish(b"host/shutdown", b"at noon")
            for name, subscription in (("alice", of_alice), ("bob", of_bob)):
                message = subscription.receive(timeout=10)
                print(name, "sees", message.key.decode(), message.payload.decode())

            # Secrets cross the tree: a credential key names one process, under the key of each link to the parent it.
            box = alice.hub.whoami() + b"/box"
            mine = alice.subscribe(box)
            print("alice is two floors down:", alice.hub.whoami().count(b"!/cred/") == 2)
            operator.publish(box, b"for your eyes only")
            print("alice alone reads", mine.receive(timeout=10).payload.decode())
            bob.sync("tree")
            print("bob, who asked for everything, has nothing of alice's")

        for hub in hubs.values():
            hub.stop()


if __name__ == "__main__":
    main()

"""``sbus hub explain``: whether a hub with this configuration file lets a user do something, and what decides."""

from __future__ import annotations

from argparse import Namespace

from .arguments import Parser, add
from .console import CONFIG_PLACE, EXIT_FAILURE, EXIT_SUCCESS
from .tables import show_json

TYPE_CHECKING = False  # the typing module would take as long to load as argparse
if TYPE_CHECKING:
    from ..keys.policy import Verb
    from .config import HubSettings


def add_hub_explain(parser: Parser) -> None:
    """Complete the parser of the command."""
    parser.description = (
        "Say what the rules of a configuration file allow a user, and which of them decides. Without --config, the "
        "file is that of the bus of the machine."
    )
    parser.epilog = (
        "exit status:\n"
        "  0   yes\n"
        "  1   no, or an error\n"
        "  2   the arguments are wrong, or what stands in the file\n"
        "\n"
        "examples:\n"
        "  sbus hub explain alice publish tenants/alice/status\n"
        "  sbus hub explain 1001 subscribe 'room/*/temp' --config /etc/sbus.toml"
    )

    add(parser, "USER", "name or id", dest="who")
    add(parser, "VERB", "publish or subscribe", choices=["publish", "subscribe"])
    add(parser, "KEY", "the key, or the pattern for subscribe")
    add(parser, "--config FILE", "the file that the hub reads (%(default)s)", default=CONFIG_PLACE)
    add(parser, "-u --user USER", "as the hub was given it", action="append")
    add(parser, "--separator BYTE", "as the hub was given it")
    add(parser, "--json", "as JSON in a line")


def run_hub_explain(arguments: Namespace) -> int:
    from ..kernel.users import resolve_user
    from ..wire.packets import check_key
    from .config import read_settings

    user, verb, key = arguments.who, arguments.verb, arguments.key
    check_key(key, "key" if verb == "publish" else "pattern")
    uid = resolve_user(user)
    rules = read_settings(arguments, of_any=True)
    refusal = why_refused(rules, uid, verb, key)
    if refusal is not None:
        allowed, text = False, f"no: {refusal}"
    elif rules.policy is None:
        allowed, text = True, f"yes: {arguments.config} has no rules, so everybody may do anything"
    else:
        answer = rules.policy.explain(uid, verb, key)
        allowed, text = answer.allowed, f"{'yes' if answer.allowed else 'no'}: {answer.reason(verb, user)}"
    if arguments.json:
        show_json({"allowed": allowed, "text": text})
    else:
        print(text)
    return EXIT_SUCCESS if allowed else EXIT_FAILURE


def why_refused(rules: HubSettings, uid: int, verb: Verb, key: bytes) -> str | None:
    """Return why a hub refuses this under any rules, by the checks of a hub itself; ``None`` if it does not."""
    from ..core.quotas import Quotas
    from ..core.router import Router
    from ..errors import PacketError
    from ..secrets import Credentials
    from ..wire.packets import message_header

    if rules.users is not None and uid not in rules.users:
        return "this user may not connect, unless it is the hub's own: it is not among the users"
    quotas = Quotas(rules.limits, connections=1)
    router: Router[str] = Router(rules.limits, quotas, rules.separator)
    try:
        if verb == "publish":
            router.route(message_header(key))
        else:
            gid, _, pid = router.namespace.holder(key) or (None, None, None)  # its group and process may be any
            client = Credentials(gid=gid or 0, uid=uid, pid=pid or 0)
            router.subscribe(router.cut(key), "client", client, quotas.account(uid))
    except PacketError as error:
        return f"the hub disconnects who does this: {error.reason}"
    return None

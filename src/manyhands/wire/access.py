"""Who may say what: a device speaks only under its own name, and hears all.

Rules for Zenoh, which every receiver applies to what comes in, by the common name in the certificate of the
link that it came over. What no rule allows is dropped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from manyhands.wire import topics

__all__ = ["access_rules"]

SPOKEN = ["put", "delete", "reply", "declare_queryable", "liveliness_token"]
HEARD = ["declare_subscriber", "declare_liveliness_subscriber", "liveliness_query"]
ALL = [*SPOKEN, *HEARD, "query"]


def access_rules(members: Mapping[str, str]) -> dict[str, Any]:
    """Zenoh's ``access_control`` for a job.

    Args:
        members: Hand -> the common name under which it speaks.
    """
    hands: defaultdict[str, list[str]] = defaultdict(list)
    for hand, common_name in members.items():
        hands[common_name].append(hand)
    rules = [
        _rule("hear", HEARD, "ingress", [f"{topics.ROOT}/**"]),
        _rule("send", ALL, "egress", [f"{topics.ROOT}/**"]),
    ]
    subjects: list[dict[str, Any]] = [{"id": "everybody"}]
    policies: list[dict[str, Any]] = [{"rules": ["send"], "subjects": ["everybody"]}]
    for name, own in hands.items():
        rules.append(_rule(f"speak-{name}", SPOKEN, "ingress", [topics.under(hand) for hand in own]))
        rules.append(_rule(f"ask-{name}", ["query"], "ingress", [topics.asked_by(hand) for hand in own]))
        subjects.append({"id": f"device-{name}", "cert_common_names": [name]})
        policies.append({"rules": ["hear", f"speak-{name}", f"ask-{name}"], "subjects": [f"device-{name}"]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _rule(name: str, messages: list[str], flow: str, keys: list[str]) -> dict[str, Any]:
    return {"id": name, "permission": "allow", "flows": [flow], "messages": messages, "key_exprs": keys}

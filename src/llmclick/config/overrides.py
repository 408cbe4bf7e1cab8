"""`--set a.b=c`: changes to the tree of a config before it is checked."""

from __future__ import annotations

from dataclasses import replace

from llmclick.config import names
from llmclick.config.reading import Node, read_yaml
from llmclick.errors import Problem


def override(root: Node, text: str) -> list[Problem]:
    """Applies one `a.b=c` to the tree."""
    where = f"--set {text}"
    dotted, equals, written = text.partition("=")
    parts = dotted.strip().split(".")
    if not equals or not all(parts):
        why = "an override is a dotted key, =, and a value"
        return [Problem(where, "", why, "write for example --set training.lr=2e-6")]
    if not written.strip():
        why = "there is nothing after ="
        return [Problem(where, dotted, why, f"write {dotted}=null to take the key back to its default, or a value")]
    value, problems = read_yaml(written, lambda line: where)
    if problems or value is None:
        return problems or [Problem(where, dotted, "there is no value after =", f"write {dotted}=null for the default")]
    reset = value.value is None
    node = root
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        at = ".".join(parts[:depth])
        new = Node(where, None, reset=True) if last and reset else value if last else Node(where, None)
        if node.value is None:
            node.value = [] if part.isdigit() and depth else {}
            node.reset = False
        if isinstance(node.value, list):
            if not part.isdigit() or int(part) > len(node.value):
                why = f"{at} is a list of {len(node.value)}; its items are counted from 0"
                return [
                    Problem(where, dotted, why, f"write {at}.0 to {at}.{max(len(node.value) - 1, 0)}, or set {at} as a whole")
                ]
            if last and reset:
                return [Problem(where, dotted, "an item of a list has no default", f"set {at} as a whole")]
            if int(part) == len(node.value):
                node.value.append(new)
            else:
                node.value[int(part)] = new if last else _own(node.value[int(part)])
            node = node.value[int(part)]
        elif isinstance(node.value, dict):
            if last:
                node.value[part] = new
            elif part not in node.value or node.value[part].value is None:
                if reset and depth > 0:
                    return []  # nothing is written there, so it is at its default
                node.value[part] = new
            else:
                node.value[part] = _own(node.value[part])
            node = node.value[part]
        else:
            why = f"{at} is {names.show(node.value)}, and a single value has nothing below it"
            return [Problem(where, dotted, why, f"set {at} as a whole")]
    return []


def _own(node: Node) -> Node:
    """A copy to change: an alias may share the value with another place."""
    value = node.value
    return replace(node, value=dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value)

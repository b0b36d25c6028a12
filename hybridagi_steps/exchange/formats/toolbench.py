"""ToolBench's answer trees, in: one search for an answer per record, with all its dead ends.

In the tree a Thought, an Action (the tool's name) and an Action Input (arguments and what came
back) are nodes below each other; together they are one step. Branches keep their `parent_id`, so
the tree can be walked as it was searched; calls of `Finish` end a branch. The query is the
ProgramCall, the answer the ProgramEnd. The native nodes stand in the step's `messages`, without
their children; what else the file says is kept on the first step. A search without branches has no
tree but a list of tries, each a chain of the same nodes: they become branches of one tree.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from hybridagi_steps.exchange.records import Parsed, Record, Records, Skipped, read_each
from hybridagi_steps.messages.conversation import content_key
from hybridagi_steps.records import json_reading as js
from hybridagi_steps.records.json_reading import BadRecordError, JsonObject

PROGRAM = "toolbench"
"""Name of the program that an answer tree is."""

_ACCEPTED = (0, 3, 4)
"""Observation codes of a call that worked: answered, finished with an answer, given up."""


def recognises(value: JsonValue) -> bool:
    """Whether a record is an answer tree."""
    tree = js.as_object(js.as_object(value).get("tree"))
    return "answer_generation" in js.as_object(value) or "tree" in tree


def parse(records: Records) -> Iterator[Parsed | Skipped]:
    """Return the steps of answer trees, one per record."""
    return read_each(records, lambda record: _Tree(record).steps())


class _Tree:
    """Goes through one tree, depth first, as it was searched."""

    def __init__(self, record: Record) -> None:
        self._record = record
        value = js.as_object(record.value)
        self._root = js.as_object(js.as_object(value.get("tree")).get("tree")) or _chains(value)
        if not self._root:
            raise BadRecordError("an answer without its tree")
        self._answer = js.as_object(value.get("answer_generation"))
        self._value = value
        self._key = content_key([self._answer.get("query"), self._root])
        self._run_id = f"toolbench-{self._key[:16]}"
        self._steps: list[Parsed] = []
        self._query = self._question()
        self._call_id = ""

    def steps(self) -> list[Parsed]:
        inputs = {"program": PROGRAM, "purpose": self._query, "arguments": {"query": self._query}}
        extras = {key: item for key, item in self._value.items() if key != "tree"}
        if "trys" in extras:
            extras["trys"] = [js.without(item, "chain") for item in js.as_list(extras["trys"])]
        about = js.without(self._value.get("tree"), "tree")
        metadata = {"answer": {**extras, "tree": about}}
        root = [js.without(self._root, "children")]
        self._call_id = self._add("root", "ProgramCall", None, inputs, None, root, metadata)
        self._branches()
        self._end()
        return self._steps

    def _question(self) -> str:
        if isinstance(query := self._answer.get("query"), str):
            return query
        messages = js.as_list(self._answer.get("train_messages"))
        text = js.last_user_text(messages[0]) if messages else ""
        return text.strip().removesuffix("Begin!").strip()

    def _branches(self) -> None:
        """Visit every node once; a step begins at the first node after an Action Input."""
        open_nodes: list[tuple[JsonObject, str, str, list[JsonObject]]]
        open_nodes = [(self._root, "0", self._call_id, [])]
        while open_nodes:
            node, place, parent, gathered = open_nodes.pop()
            children = [js.as_object(child) for child in js.as_list(node.get("children"))]
            if node is not self._root:
                gathered = [*gathered, node]
                whole = node.get("node_type") == "Action Input" or not children
                branches = len(children) > 1  # what is shared must be a step of its own
                if whole or branches:
                    parent, gathered = self._node_step(gathered, place, parent), []
            for number in range(len(children) - 1, -1, -1):
                open_nodes.append((children[number], f"{place}.{number}", parent, gathered))

    def _node_step(self, nodes: list[JsonObject], place: str, parent: str) -> str:
        last, by_type = nodes[-1], {str(node.get("node_type")): node for node in nodes}
        thought, tool, arguments = (
            js.as_object(by_type.get(kind)).get("description")
            for kind in ("Thought", "Action", "Action Input")
        )
        inputs: JsonObject = {"purpose": js.text_of(thought) or self._query}
        inputs |= {} if tool is None else {"tool": js.text_of(tool)}
        inputs["arguments"] = js.as_arguments(arguments)
        metadata = {key: last[key] for key in ("pruned", "is_terminal", "finished") if key in last}
        outputs = {"result": last["observation"]} if "observation" in last else None
        if outputs is None and tool is None:
            outputs = {"result": js.text_of(thought)}
        elif outputs is None:
            metadata["note"] = "no observation for this call"
        natives = [js.without(node, "children") for node in nodes]
        return self._add(place, "Action", parent, inputs, outputs, natives, metadata)

    def _end(self) -> None:
        final = js.json_or_text(self._answer.get("final_answer"))
        answer = js.as_object(final).get("final_answer", final)
        last = next((p.step for p in reversed(self._steps) if _gave_answer(p.step.arguments)), None)
        parent = str(last.id if last else self._steps[-1].step.id)
        outputs = None if answer is None else {"result": answer}
        about = {} if answer else {"note": "the search found no answer"}
        self._add("end", "ProgramEnd", parent, {"program": PROGRAM}, outputs, [], about)

    def _add(
        self,
        place: str,
        kind: str,
        parent: str | None,
        inputs: JsonObject,
        outputs: JsonObject | None,
        nodes: list[JsonObject],
        metadata: JsonObject,
    ) -> str:
        code = nodes[-1].get("observation_code") if nodes and kind == "Action" else None
        failed = isinstance(code, int) and code not in _ACCEPTED
        if failed and outputs:
            outputs = {"error": {"type": f"code {code}", "message": js.text_of(outputs["result"])}}
        total = js.first_number(self._answer, "total_tokens") if kind == "ProgramEnd" else None
        fields = {
            "step_type": kind,
            "inputs": inputs,
            "outputs": outputs,
            "messages": nodes,
            "id": str(js.stable_id("toolbench", self._key, place)),
            "parent_id": parent,
            "hop": len(self._steps),
            "metadata": {"format": "toolbench", **metadata},
            "run_id": self._run_id,
            "program_id": self._call_id if kind != "ProgramCall" else None,
            "status": "error" if failed else "partial" if "note" in metadata else "ok",
            "metrics": {"total_tokens": total} if total is not None else None,
        }
        step = js.agent_step(fields)
        self._steps.append(Parsed(self._record.line, step))
        return str(step.id)


def _chains(value: JsonObject) -> JsonObject:
    """Return the tries of a search without branches as branches of one tree; {} without any."""
    heads: list[JsonObject] = []
    for attempt in js.as_list(value.get("trys")):
        below: list[JsonObject] = []
        for node in reversed(js.as_list(js.as_object(attempt).get("chain"))):
            below = [{**js.as_object(node), "children": below}]
        heads += below
    return {"node_type": "Action Input", "children": heads} if heads else {}


def _gave_answer(arguments: JsonObject) -> bool:
    return arguments.get("return_type") == "give_answer"

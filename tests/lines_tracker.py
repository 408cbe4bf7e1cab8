"""A user's tracker: one line of JSON per step; `broken` makes it fail at that."""

import json

from llmclick.tracking.trackers import TRACKERS


@TRACKERS.register("lines")
class Lines:
    def __init__(self, run):
        self.broken = run.params.get("broken")
        if self.broken == "open":
            raise RuntimeError("no key")
        self.file = open(run.folder / "lines.jsonl", "a")  # noqa: SIM115 - open for as long as the tracker is

    def log(self, values, step):
        if self.broken == "log":
            raise OSError("no route to host")
        self.file.write(json.dumps([step, values]) + "\n")

    def close(self):
        self.file.close()
        if self.broken == "close":
            raise OSError("lost at the end")

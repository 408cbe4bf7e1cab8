"""A reward that nothing can answer right and that every group differs in."""

import zlib

from llmclick.modeling.llm.methods.grpo import REWARDS


@REWARDS.register("spread")
def spread(completion: str, row: dict, params: dict) -> float:
    return zlib.crc32(completion.encode("utf-8", "surrogatepass")) % 7 / 6

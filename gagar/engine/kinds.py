"""The kinds of engines, and their port in the run file. A new one is an EngineTable and a place in the union."""

from typing import Annotated

from msgspec import Meta

from gagar.config import Kind, require
from gagar.engine.protocol import Engine
from gagar.policies.chat_template import ChatTemplate


class EngineTable(Kind, frozen=True, kw_only=True):
    """`[rollout_worker.engine]`: the engine that samples."""

    def make(self, chat: ChatTemplate, max_running: int) -> Engine:
        """An engine for the model beside `chat`, which decodes at most `max_running` completions at a time; not yet open."""
        raise NotImplementedError


class Transformers(EngineTable, frozen=True, kw_only=True, tag="transformers"):
    """A Hugging Face model in the worker's own process."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N; auto takes a GPU if there is one."""
    num_threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """CPU threads. More than one helps only where as many cores are idle; else they wait for each other."""
    max_cache_tokens: Annotated[int, Meta(ge=1024)] = 1 << 18
    """Rows x positions of the key-value cache; more rollouts wait."""

    def __post_init__(self) -> None:
        is_device = self.device in ("auto", "cpu", "cuda") or self.device.removeprefix("cuda:").isdigit()
        require(is_device, "device", "auto, cpu, cuda or cuda:N", self.device)

    def make(self, chat: ChatTemplate, max_running: int) -> Engine:
        from gagar.engine.transformers import TransformersEngine

        return TransformersEngine(
            chat,
            max_running=max_running,
            max_cache_tokens=self.max_cache_tokens,
            num_threads=self.num_threads,
            device=self.device,
        )


EngineKinds = Transformers

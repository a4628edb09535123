"""A tiny model made on the spot, and hand-written fakes of the engine and the sandbox."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from gagar.engine.protocol import Completion, SamplingParams
from gagar.policies.model_directory import weights_checksum
from gagar.records import PolicyVersion
from gagar.sandbox.protocol import CommandResult, TestRun
from gagar.tasks.patches import Tree
from gagar.tasks.task import Task

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SUBMITS = "```bash\necho hello > new.txt\nsubmit\n```"


def build_model(path: Path, seed: int = 0, **changes: Any) -> Path:
    """A random Llama of 2 layers with a byte-level tokenizer and a chat template, as a Hugging Face directory."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 4}
    sizes = {**shape, "num_key_value_heads": 2, "vocab_size": 260, "max_position_embeddings": 512, **changes}
    config = LlamaConfig(**sizes, tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, initializer_range=0.3)
    LlamaForCausalLM(config).save_pretrained(path)
    specials = ["<|im_start|>", "<|im_end|>"]
    vocab = {token: index for index, token in enumerate([*specials, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
    return path


def publish(location: Path, version: int, run_id: str = "a") -> PolicyVersion:
    """The record of a version whose files lie in `location`."""
    return PolicyVersion(
        run_id=run_id, version=version, step=version, location=str(location), checksum=weights_checksum(location)
    )


def make_task(**fields: Any) -> Task:
    decided: dict[str, Any] = {"tests": {"t.py": ""}, "fail_to_pass": ["t.py::t"]}
    defaults: dict[str, Any] = {"statement": "say hello", "tree": {"a.txt": "a\n"}, **decided}
    return Task(task_id=fields.pop("task_id", "task"), **{**defaults, **fields})


class FakeEngine:
    """Answers with scripted texts, a token for each character; every token is sampled by the version then loaded."""

    END = 0

    def __init__(self, answers: Sequence[str | Exception] = (SUBMITS,), version: int = -1) -> None:
        self.answers = list(answers)
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.loads: list[tuple[str, int]] = []
        self.load_error: Exception | None = None
        self.finish: Any = "stop"
        self.block: asyncio.Event | None = None
        self.sampling_s = 0.0
        """What it says of each completion."""
        self.lasts_s = 0.0
        """How long each call really takes."""
        self._version = version

    async def open(self) -> None: ...

    async def generate(self, prompt_ids: list[int], params: SamplingParams) -> Completion:
        self.prompts.append(prompt_ids)
        self.params.append(params)
        if self.block is not None:
            await self.block.wait()
        if self.lasts_s:
            await asyncio.sleep(self.lasts_s)
        answer = self.answers[(len(self.prompts) - 1) % len(self.answers)]
        if isinstance(answer, Exception):
            raise answer
        ids = [ord(char) for char in answer] + ([self.END] if self.finish == "stop" else [])
        count = len(ids)
        return Completion(
            token_ids=ids,
            logprobs=[-0.5] * count,
            policy_versions=[self._version] * count,
            finish=self.finish,
            sampling_s=self.sampling_s,
        )

    async def load_weights(self, location: Path, version: int) -> None:
        if self.load_error is not None:
            raise self.load_error
        self.loads.append((str(location), version))
        self._version = version

    @property
    def policy_version(self) -> int:
        return self._version

    async def close(self) -> None: ...


class FakeChat:
    """Renders a token for each character."""

    def open(self) -> None: ...

    def render(self, messages: list[dict[str, str]]) -> list[int]:
        return [ord(char) for message in messages for char in f"<{message['role']}>{message['content']}"]

    def render_turn(self, content: str) -> list[int]:
        return [ord(char) for char in f"<user>{content}<assistant>"]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != FakeEngine.END)


Shell = Callable[[str, dict[str, str]], CommandResult]


def shell_that_submits(script: str, tree: dict[str, str]) -> CommandResult:
    """Plays a shell that writes one file and, if the action says so, calls `submit`."""
    head, _, action = script.partition("\n")
    tree["new.txt"] = "hello\n"
    mark = head.split("'\\n%s\\n' ")[1].split(";")[0]
    output = f"\n{mark}\n" if "submit" in action.split() else "written\n"
    return CommandResult(exit_code=0, output=output)


class FakeWorkspace:
    def __init__(self, tree: Tree, shell: Shell) -> None:
        self.tree = dict(tree)
        self._shell = shell

    async def run(self, script: str, timeout_s: float) -> CommandResult:
        return self._shell(script, self.tree)

    async def read_tree(self) -> dict[str, str]:
        return dict(self.tree)

    async def run_tests(self, test_ids: Sequence[str], timeout_s: float, conftests: Sequence[str] = ()) -> TestRun:
        raise NotImplementedError

    async def count_dead_statements(self, base: Tree, result: Tree) -> int:
        raise NotImplementedError


class FakeSandbox:
    """Workspaces in memory; counts those that are open."""

    def __init__(self, shell: Shell = shell_that_submits) -> None:
        self.shell = shell
        self.num_open = 0
        self.num_opened = 0
        self.block: asyncio.Event | None = None

    async def open(self) -> None: ...

    def workspace(self, tree: Tree) -> AbstractAsyncContextManager[FakeWorkspace]:
        return self._workspace(tree)

    @asynccontextmanager
    async def _workspace(self, tree: Tree) -> AsyncIterator[FakeWorkspace]:
        if self.block is not None:
            await self.block.wait()
        self.num_open += 1
        self.num_opened += 1
        try:
            yield FakeWorkspace(tree, self.shell)
        finally:
            self.num_open -= 1

    async def close(self) -> None: ...

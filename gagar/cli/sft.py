"""`gagar sft`: makes the models that the pipeline starts from."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gagar.training.sft import SftProgress

REPORT_EVERY = 20
"""Steps between two lines of progress."""


@click.group()
def sft() -> None:
    """Make a model by supervised fine-tuning."""


@sft.command()
@click.option("--recipe", type=click.Choice(["nano"]), required=True, help="What to make.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Directory to write to.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seeds tasks, demonstrations and weights.")
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Of the processor.")
@click.option("--evaluate", is_flag=True, help="Measure pass rates at the end; tries answers without a sandbox.")
def policy(recipe: str, out: Path, seed: int, threads: int, evaluate: bool) -> None:
    """Make a policy, its tasks and its tokenizer from generated demonstrations."""
    import torch

    from gagar.nano.recipe import NANO_SFT, make_policy

    def report(progress: "SftProgress") -> None:
        if progress.step % REPORT_EVERY == 0 or progress.step == NANO_SFT.num_steps:
            click.echo(f"sft step={progress.step}/{NANO_SFT.num_steps} loss={progress.loss:.4f} tokens={progress.num_tokens}")

    torch.set_num_threads(threads)
    make_policy(out, seed, NANO_SFT, report)
    click.echo(f"sft done recipe={recipe} policy={out / 'policy'}")
    if evaluate:
        _evaluate(out)


def _evaluate(directory: Path) -> None:
    from gagar.nano.evaluation import load_policy, score
    from gagar.tasks.jsonl import JsonlTasks

    model, tokenizer = load_policy(directory / "policy")
    for part in ("train", "heldout"):
        tasks = JsonlTasks(directory / f"{part}.jsonl").all()
        click.echo(f"sft evaluated part={part} {score(model, tokenizer, tasks)}")

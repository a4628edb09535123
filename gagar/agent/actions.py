"""The agent's side of the protocol: a completion's last fenced bash block is its action; a command's result is its observation.

In: text that a policy or a command wrote (hostile). Out: a bounded script or none; a bounded message. Linear in the text.
"""

from gagar.sandbox.protocol import CommandResult

OPENING_FENCE = "```bash"
CLOSING_FENCE = "```"
MAX_ACTION_CHARS = 64 << 10
"""A longer block is no action."""
MAX_OBSERVATION_CHARS = 8 << 10
"""Of the message; head and tail are kept."""

NO_ACTION = "no action found: answer with one fenced bash block, ```bash ... ```, of at most 64 KiB"


def parse_action(completion: str) -> str | None:
    """The last complete block that a line "```bash" opens and a line "```" closes; none if there is none or it is too long.

    Example: "first I look\\n```bash\\nls\\n```" gives "ls\\n".
    """
    action: str | None = None
    block: list[str] | None = None
    for line in completion.split("\n"):
        fence = line.rstrip()
        if block is None:
            block = [] if fence == OPENING_FENCE else None
        elif fence == CLOSING_FENCE:
            action, block = "".join(f"{kept}\n" for kept in block), None
        else:
            block.append(line)
    if action is None or len(action) > MAX_ACTION_CHARS or "\0" in action:
        return None
    return action


def format_observation(result: CommandResult, timeout_s: float) -> str:
    """What the agent is told of a command."""
    how = f"killed after {timeout_s:.0f} s" if result.is_timeout else f"exit code {result.exit_code}"
    return f"{how}\n{shorten(result.output, MAX_OBSERVATION_CHARS)}"


def shorten(text: str, max_chars: int) -> str:
    """Head and tail of a text that is too long, with the number of characters left out."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"

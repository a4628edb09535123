"""An evaluation round: sums over its groups, and the rates that follow from them. Pure."""

import math

import msgspec

from gagar.records import Outcome


def ratio(part: float, whole: float) -> float | None:
    """part / whole; none if there is no whole."""
    return part / whole if whole else None


class Round(msgspec.Struct, kw_only=True):
    """Sums over the evaluation groups of one round: the held-out tasks under the policy of about one step."""

    step: int
    num_groups: int = 0
    num_attempts: int = 0
    num_valid: int = 0
    num_passed: int = 0
    num_clean: int = 0
    """Passing attempts without dead statement or edit outside the task."""
    num_sampled_tokens: int = 0
    valid_squared: int = 0
    """Sums over groups of products, for the standard error: valid x valid, passed x passed, valid x passed."""
    passed_squared: int = 0
    valid_passed: int = 0

    def add(self, outcome: Outcome) -> None:
        self.num_groups += 1
        self.num_attempts += outcome.num_requested
        self.num_valid += outcome.num_valid
        self.num_passed += outcome.num_passed
        self.num_clean += outcome.num_clean
        self.num_sampled_tokens += outcome.num_sampled_tokens
        self.valid_squared += outcome.num_valid**2
        self.passed_squared += outcome.num_passed**2
        self.valid_passed += outcome.num_valid * outcome.num_passed

    @property
    def pass_rate(self) -> float | None:
        """Passed by valid attempts; none without valid attempts."""
        return ratio(self.num_passed, self.num_valid)

    @property
    def pass_error(self) -> float:
        """Standard error over tasks: attempts at one task are alike, so its group is the unit (ratio estimator)."""
        rate = self.pass_rate
        if rate is None or self.num_groups < 2:
            return 0.0
        residual = self.passed_squared - 2 * rate * self.valid_passed + rate * rate * self.valid_squared
        spread = max(residual, 0.0) * self.num_groups / (self.num_groups - 1)
        return math.sqrt(spread) / self.num_valid

    @property
    def quality(self) -> float | None:
        """Clean by passed attempts; none if nothing passed."""
        return ratio(self.num_clean, self.num_passed)

    @property
    def quality_error(self) -> float:
        """Binomial standard error of the quality."""
        share = self.quality
        return math.sqrt(share * (1 - share) / self.num_passed) if share is not None else 0.0

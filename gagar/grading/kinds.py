"""The kinds of graders. A new one is a GraderTable and a place in the union."""

from gagar.grading.plain import NoGrading
from gagar.grading.rules import Rules

GraderKinds = Rules | NoGrading

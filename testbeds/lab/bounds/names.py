"""The name of each bound for people: one in every table, plot and page.

Keys are those of documents, such as `compulsory`; docs/reference/bounds.md says what each knows.
"""

from offstage.testbeds.lab.bounds.predictors import PREDICTORS

__all__ = ["BOUND_NAMES", "bound_label", "bound_name"]

BOUND_NAMES = {
    "compulsory": "infinite buffer",
    "belady": "Belady, no prefetch",
    "clairvoyant": "clairvoyant",
    "cap_limit": "limit under the cap",
    "last_step": "last step",
    "two_averages": "two averages",
}


def bound_name(name: str) -> str:
    """A bound's name in text."""
    return BOUND_NAMES.get(name, name.replace("_", " "))


def bound_label(name: str) -> str:
    """The name with its kind: bound or predictor."""
    return f"{'predictor' if name in PREDICTORS else 'bound'}: {bound_name(name)}"

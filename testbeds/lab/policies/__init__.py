"""The components that ship with Offstage, in the order in which they are listed.

One component is one class; `offstage.testbeds.lab.policies.policy` defines its contract.
"""

from offstage.testbeds.lab.policies.adaptive import Boundary, Stability, Warmup
from offstage.testbeds.lab.policies.carried import (
    EVICTION_ONLY,
    Coschedule,
    Ema,
    Granule,
    NextN,
    Nothing,
    PrevLayer,
    PrevStep,
    Shared,
    Window,
)
from offstage.testbeds.lab.policies.lookahead import (
    Lookahead,
    LookaheadDraft,
    LookaheadIndex,
    LookaheadMeasured,
    LookaheadQuery,
    LookaheadUndrafted,
    OasisDraft,
)
from offstage.testbeds.lab.policies.policy import PolicyComponent
from offstage.testbeds.lab.policies.published import (
    PrrEma,
    SolidAttentionPrevStep,
    UcmStrided,
    UcmStrided3,
)

__all__ = ["BUILT_IN"]

BUILT_IN: tuple[type[PolicyComponent], ...] = (
    Nothing,
    Window,
    Ema,
    Shared,
    Lookahead,
    LookaheadIndex,
    LookaheadDraft,
    LookaheadQuery,
    LookaheadUndrafted,
    LookaheadMeasured,
    Stability,
    Boundary,
    Warmup,
    Coschedule,
    Granule,
    PrevStep,
    PrevLayer,
    NextN,
    *EVICTION_ONLY,
    PrrEma,
    UcmStrided,
    UcmStrided3,
    SolidAttentionPrevStep,
    OasisDraft,
)

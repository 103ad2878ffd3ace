"""The demo: a DPU daemon, a host agent and a 128K-token context on one machine."""

from offstage.testbeds.demo.demo import run
from offstage.testbeds.demo.options import ARMS, Arm, DemoOptions

__all__ = ["ARMS", "Arm", "DemoOptions", "run"]

"""The answers of a rank that is asked for its state."""

from workbench.wire.rank_messages import RankState


def rank_state(**differing):
    """The state of a rank that computes in cell 1, but for what is given."""
    usual = {
        "asked_s": 0.0,
        "for_stall_report": False,
        "cell": 1,
        "collective": None,
        "blocked_s": 0.0,
        "collective_number": None,
        "process_set": 0,
        "members": None,
        "calls": 0,
        "outstanding": (),
        "stack": "",
        "interrupt_stage": "running",
        "raised_s": 0.0,
        "prompt": None,
    }
    return RankState(**{**usual, **differing})

"""Declarations of the figures that tables, views, exports and the documentation show.

`workbench.timings.figures` computes the means of figures.

A new figure is declared here, and needs two more steps. Its column is computed in
`workbench.timings.derive.columns`, from columns of `workbench.timings.store.ROW`; a new column of
rows is added there. ``python tests/support/generated_typescript.py`` then writes the declaration
for the TypeScript code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A figure that is shown as a mean over iterations and ranks.

    Attributes
    ----------
    name
        Name of the figure, which ends in the unit: ``_us`` for microseconds, ``_gbps`` for 10^9
        bits per second, ``_share`` for a ratio from 0 to 1. Most figures are columns of
        ``to_frame()``.
    label
        Name of the figure in tables, legends and axes.
    meaning
        Definition of the figure, for the documentation.
    certainty
        How the figure is measured and how certain it is, for the documentation.
    color
        Colour of the figure's bars and lines, from the palette of Okabe and Ito, which is legible
        on light and dark backgrounds.
    weight
        The column that weights the mean. Bandwidths are weighted by the duration of the
        communication, so that their mean is the sum of all bytes divided by the sum of all
        durations. Without a weight, all iterations of all ranks have the same weight.
    part, whole
        The columns that a share is computed from: the sum of `part` divided by the sum of `whole`.
        Both are empty for figures that are not shares.
    metric, metric_meaning
        Name and help text of the Prometheus metric, without prefix; empty if the figure has no
        metric.
    metric_scale
        Factor from the published figure to the metric's base unit.
    published
        Key of the figure in the entries that kernels publish for the server; by default `name`.

    Examples
    --------
    >>> FIGURES["exposed_us"].label
    'exposed'
    >>> FIGURES["exposed_share"].part
    'exposed_us'
    """

    name: str
    label: str
    meaning: str
    certainty: str
    color: str = ""
    weight: str = ""
    part: str = ""
    whole: str = ""
    metric: str = ""
    metric_meaning: str = ""
    metric_scale: float = 1.0
    published: str = ""


ITERATION = Figure(
    "iteration_us",
    "iteration",
    "from the end of the previous step, or the start of the cell's first batch or forward, to the "
    "end of this one",
    "the clock of the rank, or CUDA events on its stream; about 0.1 \u00b5s",
    metric="iteration_seconds",
    metric_meaning="Mean duration of the latest typical iterations.",
    published="iteration_s",
)

PHASE_FIGURES = (
    Figure(
        "data_us",
        "data",
        "time in which the training thread is in a loader, from `iter(loader)` on, wherever the "
        "loop asks for a batch; not for the batches of an evaluation, nor in another thread",
        "measured for a `DataLoader`, its subclasses, loaders of torchdata, Hugging Face datasets, "
        "accelerate, WebDataset, FFCV and DALI, and what `workbench.data` names; other sources of "
        "data are in `other_us`",
        "#56B4E9",
    ),
    Figure("copy_us", "copy", "copies to a device", "measured", "#F0E442"),
    Figure(
        "forward_us",
        "forward",
        "calls of the model, without waits for communication",
        "measured",
        "#009E73",
    ),
    Figure(
        "backward_us",
        "backward",
        "calls of `backward()`, without waits for communication",
        "measured",
        "#0072B2",
    ),
    Figure(
        "exposed_us",
        "exposed",
        "time in which training did nothing but wait for gradients",
        "measured where training waits",
        "#D55E00",
    ),
    Figure(
        "optimizer_us",
        "optimizer",
        "the optimizer's `step()` without waits",
        "measured",
        "#CC79A7",
    ),
    Figure("other_us", "other", "what is left", "the difference", "#999999"),
)
"""The phases in their order within an iteration. Their sum is the iteration's duration."""

COMMUNICATION_FIGURES = (
    Figure(
        "communication_us",
        "communication",
        "length of the union of the collectives' times, from submission to the end, so queueing is "
        "included",
        "with our Horovod, times from inside it; within 1 \u00b5s of Horovod's Timeline in a "
        "comparison on one machine",
    ),
    Figure(
        "overlapped_us",
        "overlapped",
        "communication concurrent with compute; `overlap` is its share",
        "from the same times",
        "#E69F00",
    ),
    Figure(
        "exposed_share",
        "exposed share",
        "all exposed time over all time",
        "as certain as its parts",
        part="exposed_us",
        whole="iteration_us",
        metric="exposed_ratio",
        metric_meaning="Share of the latest typical iterations in which training waited for "
        "gradients.",
    ),
    Figure(
        "wait_us",
        "waiting",
        "the part of `exposed_us` that the last rank causes: how much later it submitted its "
        "gradients, as far as training on this rank was stopped for it",
        "see [below](#who-waited-for-whom)",
    ),
    Figure(
        "queued_us",
        "queueing",
        "the part of `exposed_us` in negotiation, behind earlier buffers, and in copies",
        "unknown for DDP",
    ),
    Figure(
        "transfer_us",
        "transfer",
        "the part of `exposed_us` on the network",
        "unknown for DDP",
    ),
    Figure(
        "algbw_gbps",
        "algbw",
        "bytes \u00d7 8 / communication time",
        "as certain as its parts",
        weight="communication_us",
        metric="algorithm_bandwidth_bits_per_second",
        metric_meaning="Bytes per communication time of the latest typical iterations.",
        metric_scale=1e9,
    ),
    Figure(
        "busbw_gbps",
        "busbw",
        "`algbw` \u00d7 2(n-1)/n for an allreduce of n ranks, (n-1)/n for reduce-scatter, "
        "all-gather and all-to-all, 1 for broadcast and reduce: comparable with the rate of a "
        "link, as in NVIDIA's nccl-tests",
        "as certain as its parts",
        weight="communication_us",
        metric="bus_bandwidth_bits_per_second",
        metric_meaning="Algorithm bandwidth times 2(n-1)/n for n ranks.",
        metric_scale=1e9,
    ),
)

FIGURES = {figure.name: figure for figure in (ITERATION, *PHASE_FIGURES, *COMMUNICATION_FIGURES)}
"""The figures by name."""

"""Controls with figures that follow each change.

- `what_if_study`: predicts the duration of an iteration with other links, ranks or settings
- `cluster_form`: starts a cluster and changes it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.widgets.study.cluster_form import ClusterForm
    from workbench.widgets.study.what_if_study import WhatIfStudy

_form: ClusterForm | None = None


def what_if_view(run: str | None) -> WhatIfStudy:
    """Return the sliders of ``%fabric whatif`` for the cluster, or for a recorded run."""
    from workbench.advisor.measured_training import measure
    from workbench.cluster import registry
    from workbench.timings.run import open_run
    from workbench.widgets.study.what_if_study import WhatIfStudy

    return WhatIfStudy(measure(registry.required() if run is None else open_run(run)))


def cluster_form_view() -> ClusterForm:
    """Return the form of ``%cluster``. A kernel has one form, which several cells may show."""
    global _form  # noqa: PLW0603 - one kernel has one form
    from workbench.widgets.study.cluster_form import ClusterForm

    if _form is None or _form.comm is None:  # the form was closed
        _form = ClusterForm()
    return _form

"""A patch for builds with TensorFlow: its ops use the Horovod of PyTorch's library.

Horovod compiles all of itself into each framework's library. A process that imports both would
have two rings. The workbench could form, record and end only one of them.
"""

from __future__ import annotations

from workbench.horovod_build.patch import REPOSITORY, Edit, SourcePatch

_CMAKE = "horovod/tensorflow/CMakeLists.txt"
_OPS = "horovod/tensorflow/mpi_ops.cc"

TENSORFLOW = SourcePatch(
    name="tensorflow",
    defect="TensorFlow and PyTorch form separate rings in one process, and Horovod does not "
    "compile for TensorFlow 2.21",
    upstream=f"{REPOSITORY}/{_CMAKE}",
    edits=(
        # The XLA ops include headers that TensorFlow no longer installs.
        Edit(
            file=_CMAKE,
            old='list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
            new="",
        ),
        Edit(file=_CMAKE, old="SHARED ${SOURCES} ${TF_SOURCES}", new="SHARED ${TF_SOURCES}"),
        # Otherwise Gloo is compiled a second time.
        Edit(file=_CMAKE, old="set(Tensorflow_CXX17 TRUE)", new="set(Tensorflow_CXX17 FALSE)"),
        Edit(
            file=_CMAKE,
            old="target_link_libraries(${TF_TARGET_LIB} ${LINKER_LIBS} ${TF_LINKER_LIBS})",
            new="add_dependencies(${TF_TARGET_LIB} pytorch)\n"
            # An option, since CMake would search for a path without the prefix "lib" as a name.
            "target_link_libraries(${TF_TARGET_LIB} -Wl,$<TARGET_FILE:pytorch> ${TF_LINKER_LIBS})",
        ),
        # The records identify a collective by its handle, and its kind by its name, as for PyTorch.
        Edit(
            file=_OPS,
            old="class HorovodAllreduceOp : public AsyncOpKernel {",
            new="""\
namespace {

std::atomic<int64_t> ops_submitted{0};

// Number the collective that an op submits next; return its name with its kind, such as
// "grouped_allreduce.NAME". PyTorch's handles are positive.
std::string Submitted(const OpKernel& op, std::string name, bool ignore_name_scope) {
  common::tap::current_handle = -(ops_submitted.fetch_add(1) + 1);
  if (ignore_name_scope) {
    name = name.substr(name.find_last_of('/') + 1);
  }
  std::string kind = op.type_string().substr(std::string("Horovod").size());
  kind = kind.substr(0, kind.find("Inplace"));
  std::transform(kind.begin(), kind.end(), kind.begin(), ::tolower);
  if (kind.compare(0, 7, "grouped") == 0) {
    kind.insert(7, "_");
  }
  return kind + "." + name;
}

} // namespace

class HorovodAllreduceOp : public AsyncOpKernel {""",
        ),
        Edit(
            file=_OPS,
            old="    auto node_name = name();\n",
            new="    auto node_name = Submitted(*this, name(), ignore_name_scope_);\n",
            times=8,
        ),
        Edit(
            file=_OPS,
            old='        name() + "_" + NormalizeNameForTensorFlow(var_name);',
            new="        Submitted("
            '*this, name() + "_" + NormalizeNameForTensorFlow(var_name), false);',
        ),
    ),
)

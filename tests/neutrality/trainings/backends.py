"""What differs between the backends in trainings that work with either."""

from contextlib import nullcontext

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class DDPRanks:
    """The ranks of PyTorch's process group.

    Attributes
    ----------
    rank, size
        This rank's number, and the number of ranks.
    """

    def __init__(self):
        if not dist.is_initialized():  # in a plain process
            dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()

    def wrap(self, model):
        """Return the model as it is to be called; all ranks have the same parameters."""
        return DistributedDataParallel(model)

    def optimizer(self, optimizer, named_parameters):
        """Return the optimizer with which the parameters are to be trained."""
        return optimizer

    def synchronize(self, optimizer):
        """Wait until the gradients of a backward pass are reduced."""

    def skipped(self, optimizer):
        """Return a context for a step that does not synchronize, since `synchronize` was called."""
        return nullcontext()

    def average_gradients(self, model):
        """Reduce the gradients of a model whose optimizer is not distributed."""

    def average(self, tensor):
        """Return the mean of a tensor over all ranks."""
        total = tensor.clone()
        dist.all_reduce(total)
        return total / self.size


class HorovodRanks:
    """Horovod's ranks; the methods are those of `DDPRanks`."""

    def __init__(self):
        import horovod.torch as hvd  # trainings with DDP need no Horovod

        if not hvd.is_initialized():  # in a plain process
            hvd.init()
        self._hvd = hvd
        self.rank = hvd.rank()
        self.size = hvd.size()

    def wrap(self, model):
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def optimizer(self, optimizer, named_parameters):
        return self._hvd.DistributedOptimizer(optimizer, named_parameters=named_parameters)

    def synchronize(self, optimizer):
        optimizer.synchronize()

    def skipped(self, optimizer):
        return optimizer.skip_synchronize()

    def average_gradients(self, model):
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self._hvd.allreduce_(parameter.grad, name=f"gradient of {name}")

    def average(self, tensor):
        return self._hvd.allreduce(tensor, name="average")


BACKENDS = {"ddp": DDPRanks, "horovod": HorovodRanks}

"""Linear layers with packed weights, for tests without bitsandbytes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from privaudit.models.language.language_targets import is_transposed


class PackedLinear(nn.Linear):
    """A linear layer whose weight is a column of bytes, as bitsandbytes keeps it."""

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__(plain.in_features, plain.out_features, device="meta")
        self.scale = plain.weight.detach().abs().max() / 127
        rounded = (plain.weight / self.scale).round().to(torch.int8)
        column = rounded.view(torch.uint8).reshape(-1, 1)
        self.weight = nn.Parameter(column, requires_grad=False)
        self.bias = plain.bias

    @property
    def unpacked(self) -> Tensor:
        """The weights as they compute."""
        rows = self.weight.view(torch.int8).view(self.out_features, -1)
        return rows.float() * self.scale

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """Return the outputs of rows."""
        return linear(input, self.unpacked, self.bias)


def with_packed_layers(model: Any) -> Any:
    """Pack the linear layers of a model, but for its head; and mark it as transformers."""
    head = model.get_output_embeddings()
    for name, module in list(model.named_modules()):
        assert not is_transposed(module)
        if isinstance(module, nn.Linear) and module is not head:
            model.set_submodule(name, PackedLinear(module))
    model.is_loaded_in_8bit = True
    return model


@torch.no_grad()
def with_unpacked_weights(model: Any, packed: Any) -> Any:
    """Give a model the weights that another one's packed layers compute with."""
    for name, module in packed.named_modules():
        if isinstance(module, PackedLinear):
            model.get_submodule(name).weight.copy_(module.unpacked)
    return model

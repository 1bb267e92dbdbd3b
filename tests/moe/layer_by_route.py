"""A layer computed route by route, which the references are held against, and where it may round."""

import torch

from planfreeze.kernels.moe.reference import dequantise_mxfp4, dequantise_mxfp8, quantise_mxfp8


class Layer:
    """A small layer with two invalid routes; its weights keep gate and up of the order of one."""

    tokens, top_k, experts, hidden, intermediate = 6, 3, 4, 256, 192

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(12)
        self.x = torch.randn(self.tokens, self.hidden, generator=generator).bfloat16()
        self.w13 = self.random_weights(generator, 2 * self.intermediate, self.hidden)
        self.w2 = self.random_weights(generator, self.hidden, self.intermediate)
        self.ids = torch.stack([torch.randperm(self.experts, generator=generator) for _ in range(self.tokens)])
        self.ids = self.ids[:, : self.top_k].contiguous()
        self.ids[1, 2], self.ids[4, 0] = -1, self.experts
        self.weights = torch.randn(self.tokens, self.top_k, generator=generator).softmax(-1)
        self.alpha1 = torch.tensor([1.0, 0.5, 1.25, 2.0])
        self.alpha2 = torch.tensor([0.75, 1.0, 3.0, 0.5])

    def random_weights(self, generator, rows, k):
        codes = torch.randint(0, 256, (self.experts, rows, k // 2), generator=generator).to(torch.uint8)
        scales = torch.randint(120, 123, (self.experts, rows, k // 32), generator=generator).to(torch.uint8)
        return codes, scales

    def run(self, layer, *, device="cpu", **limits):
        operands = (self.x, *self.w13, *self.w2, self.ids, self.weights)
        alphas = {"alpha1": self.alpha1.to(device), "alpha2": self.alpha2.to(device)}
        return layer(*(operand.to(device) for operand in operands), **alphas, **limits)

    def compute(self, *, round_input, round_projections, round_activations, round_routes, limit=None):
        """Compute the layer route by route; each rounding is a function of its own."""
        w13, w2 = dequantise_mxfp4(*self.w13), dequantise_mxfp4(*self.w2)
        out = torch.zeros(self.tokens, self.hidden, dtype=torch.float64)
        for token in range(self.tokens):
            for j in range(self.top_k):
                expert = int(self.ids[token, j])
                if not 0 <= expert < self.experts:
                    continue
                x = round_input(self.x[token].double())
                rows = round_projections(w13[expert] @ x * self.alpha1[expert].double())
                up, gate = rows[: self.intermediate], rows[self.intermediate :]
                if limit is not None:
                    up, gate = up.clip(-limit, limit), gate.clip(max=limit)
                activations = round_activations(gate * torch.sigmoid(gate) * up)
                factor = self.weights[token, j].double() * self.alpha2[expert].double()
                out[token] += round_routes(w2[expert] @ activations * factor)
        return out


def exactly(values):
    return values


def to_bf16(values):
    return values.bfloat16().double()


def to_mxfp8(values):
    return dequantise_mxfp8(*quantise_mxfp8(values.bfloat16().view(1, -1)))[0]

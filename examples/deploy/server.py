"""A server in the place of yours: freeze first, serve then."""

import torch
from mykernels.add import add

import planfreeze

session = planfreeze.session().freeze()  # from PLANFREEZE_STORE and PLANFREEZE_PLAN
x = torch.ones(4096, device="cuda")
out = torch.empty_like(x)
step = session.bind(add, out, x, x, 4096, BLOCK=512)
for _ in range(3):  # requests
    step.launch()
assert out.sum().item() == 2 * 4096

"""How compressed scales are kept: the setting decides."""

import pytest
import torch

from planfreeze.errors import InvalidExperts
from planfreeze.kernels.moe.experts import prepare_experts


@pytest.mark.parametrize(("switch", "arm"), [(None, "inline"), ("1", "inline"), ("0", "expand")])
def test_the_setting_decides_how_compressed_scales_are_kept(
    monkeypatch: pytest.MonkeyPatch, switch: str | None, arm: str
) -> None:
    monkeypatch.delenv("PLANFREEZE_CSF_INLINE", raising=False)
    if switch is not None:
        monkeypatch.setenv("PLANFREEZE_CSF_INLINE", switch)
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 256, (2, 128, 128), generator=generator, dtype=torch.uint8)
    experts = prepare_experts(
        w13=codes,
        w13_scales=torch.full((2, 128, 8), 120, dtype=torch.uint8),
        w2=torch.randint(0, 256, (2, 256, 32), generator=generator, dtype=torch.uint8),
        w2_scales=torch.full((2, 256, 2), 120, dtype=torch.uint8),
        arch="sm_90a",
        weight_format="mxfp4_csf",
    )
    assert experts.arm == arm


def test_a_switch_that_is_no_flag_is_refused() -> None:
    scales = torch.zeros(1, 128, 8, dtype=torch.uint8)
    with pytest.raises(InvalidExperts, match="is_csf_inline"):
        prepare_experts(
            w13=torch.zeros(1, 128, 128, dtype=torch.uint8),
            w13_scales=scales,
            w2=torch.zeros(1, 256, 32, dtype=torch.uint8),
            w2_scales=torch.zeros(1, 256, 2, dtype=torch.uint8),
            arch="sm_90a",
            weight_format="mxfp4_csf",
            is_csf_inline="0",
        )

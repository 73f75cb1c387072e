"""HAMi's annotations, as its sources and documents show them, and what spoils them."""

import pytest

from tessera.api.documents import Document
from tessera.api.fields import Field
from tessera.api.hami.annotations import HamiAllocation, RegisteredGpu, read_allocated, read_registered
from tessera.errors import InvalidInput


def annotation(text: str) -> Field:
    return Field(Document(source="cluster", number=1, data={"a": text}, first_line=1), text)


REGISTERED = {
    "JSON, zero and false left out": (
        (
            '[{"id":"GPU-1","index":1,"count":10,"devmem":8192,"type":"NVIDIA-Tesla P4","health":true},'
            '{"id":"GPU-0","devmem":8192,"type":"NVIDIA-Tesla P4","mode":"mig","migProfiles":[{"name":"1g.5gb"}]}]'
        ),
        [("GPU-0", 0, 8192, False, "mig"), ("GPU-1", 1, 8192, True, "")],
    ),
    "seven words, in order": (
        "GPU-0,10,32768,100,NVIDIA-Tesla P4,0,true:GPU-1,10,32768,100,NVIDIA-Tesla P4,0,false:",
        [("GPU-0", 0, 32768, True, ""), ("GPU-1", 1, 32768, False, "")],
    ),
    "nine words, with the index": (
        "GPU-1,10,8192,100,NVIDIA-Tesla P4,0,true,1,hami-core:GPU-0,10,8192,100,NVIDIA-Tesla P4,0,true,0,mps:",
        [("GPU-0", 0, 8192, True, "mps"), ("GPU-1", 1, 8192, True, "hami-core")],
    ),
    "no GPU": ("[]", []),
}


@pytest.mark.parametrize(("text", "want"), REGISTERED.values(), ids=REGISTERED)
def test_registered_gpus(text: str, want: list[tuple[str, int, int, bool, str]]) -> None:
    got = read_registered(annotation(text))
    assert got == tuple(
        RegisteredGpu(id=uuid, index=index, devmem=mib, type="NVIDIA-Tesla P4", health=health, mode=mode)
        for uuid, index, mib, health, mode in want
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("[{", "GPUs as HAMi's device plugin registers them"),
        ('[{"devmem":-1}]', "[0].devmem: -1 is not at least 0"),
        ("[" * 100_000, "GPUs as HAMi's device plugin registers them"),
        ("GPU-0,10", "'GPU-0,10'"),
        ("GPU-0,10,x,100,NVIDIA-Tesla P4,0,true", "GPUs as HAMi's device plugin registers them"),
        ('[{"id":"GPU-0"},{"id":"GPU-0","index":1}]', "a GPU is there twice"),
        ('[{"id":"GPU-0"},{"id":"GPU-1"}]', "a GPU is there twice"),
    ],
)
def test_a_registration_that_cannot_be_read(text: str, want: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_registered(annotation(text))
    assert want in str(caught.value)


def test_allocated_parts() -> None:
    got = read_allocated(annotation(";GPU-1,NVIDIA,3000,30:GPU-0[0-1],NVIDIA,4864,0:;"))
    assert got == (
        HamiAllocation(uuid="GPU-1", memory_mib=3000, compute_percent=30),
        HamiAllocation(uuid="GPU-0", memory_mib=4864, compute_percent=0),
    )
    assert read_allocated(annotation("")) == ()


@pytest.mark.parametrize("text", ["GPU-1", "GPU-1,NVIDIA,many,0:", "GPU-1,NVIDIA,1,101:"])
def test_an_allocation_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidInput, match="UUID,NVIDIA,MiB,PERCENT"):
        read_allocated(annotation(text))

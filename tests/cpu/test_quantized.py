"""Products of bytes without the instructions for them: the sets that other tests name use these where they can."""

import json

import pytest

from tests.support import python_on


@pytest.mark.parametrize("isa", ["avx512_base", "avx2_base"])
def test_sums_of_bytes_do_not_saturate_without_vnni(isa):
    code = (
        "import json\n"
        "from dataflow.testing import check_device\n"
        "from dataflow.testing.conformance import VARIANTS\n"
        "from dataflow.testing.samples import TABLES\n"
        "from tests.kit_samples import sampled_variants\n"
        "found = []\n"
        "for samples, variants in sampled_variants(TABLES['quantized'], VARIANTS[:-2], 4):\n"
        "    found += check_device('cpu', samples=samples, variants=variants, complete=False)\n"
        "bad = [str(o) for o in found if o.status != 'passed']\n"
        "print(json.dumps([len(found) - len(bad), bad]))\n"
    )
    passed, bad = json.loads(python_on(isa, "-c", code))
    assert bad == [] and passed > 500

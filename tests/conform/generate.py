# SPDX-License-Identifier: Apache-2.0
"""Writes the node tests that the installed onnx package makes: generate.py OUTDIR gives OUTDIR/NAME/model.onnx,
OUTDIR/NAME/test_data_set_K/{input,output}_J.pb and OUTDIR/NAME/tolerance ("rtol atol"). OUTDIR/complete names the
version that made them and is written last; where it is right already, there is nothing to do."""
import os
import shutil
import sys
import warnings

import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

MESSAGES = {"tensor_type": numpy_helper.from_array, "sequence_type": numpy_helper.from_list,
            "optional_type": numpy_helper.from_optional, "map_type": numpy_helper.from_dict}


def encoded(value, info):
    """The message of one input or output, which is of the kind that the model says it is."""
    if isinstance(value, onnx.TensorProto):
        return value
    return MESSAGES[info.type.WhichOneof("value")](value, info.name)


def write(folder, name, message):
    with open(os.path.join(folder, name), "wb") as f:
        f.write(message.SerializeToString())


def write_case(top, case):
    folder = os.path.join(top, case.name)
    os.mkdir(folder)
    write(folder, "model.onnx", case.model)
    for k, sides in enumerate(case.data_sets):
        data = os.path.join(folder, f"test_data_set_{k}")
        os.mkdir(data)
        for side, values, infos in zip(("input", "output"), sides, (case.model.graph.input, case.model.graph.output)):
            for j, (value, info) in enumerate(zip(values, infos, strict=True)):
                write(data, f"{side}_{j}.pb", encoded(value, info))
    with open(os.path.join(folder, "tolerance"), "w") as f:
        f.write(f"{case.rtol} {case.atol}\n")


def main():
    top = sys.argv[1]
    mark = os.path.join(top, "complete")
    if os.path.exists(mark) and open(mark).read() == onnx.__version__:
        return
    shutil.rmtree(top, ignore_errors=True)
    os.makedirs(top)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of overflows that the cases are about
        cases = load_model_tests(kind="node")
    for case in cases:
        write_case(top, case)
    with open(mark, "w") as f:
        f.write(onnx.__version__)
    print(len(cases), "node tests")


main()

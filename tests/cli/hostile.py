# SPDX-License-Identifier: Apache-2.0
"""Files as an attacker would make them. CASES has a row for each: name, verdict, words that the message has to hold, and
a function that writes <folder>/model.onnx and whatever goes with it. Verdicts: reject; accept, which also runs; either;
large: either, and time and memory are in proportion to what the file holds."""
import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
CASES = []
EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\x7f\u202e"  # title, cleared screen, both kinds of CSI, DEL


def case(verdict, *words, name=None):
    """Registers a function that gives a model, the bytes of one, or None if it has written the files itself."""
    def register(build):
        def write(folder):
            made = build(folder) if build.__code__.co_argcount else build()
            if made is None:
                return
            with open(os.path.join(folder, "model.onnx"), "wb") as f:
                f.write(made if isinstance(made, bytes) else made.SerializeToString())
        CASES.append((name or build.__name__, verdict, words, write))
        return build
    return register


def each(verdict, rows):
    """One case per row: name -> (words, function)."""
    for name, (words, build) in rows.items():
        case(verdict, *words, name=name)(build)


def node(op, ins, outs, **kw):
    return helper.make_node(op, ins, outs, **kw)


def info(name, shape=(2, 4), dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def array(name, values, dtype=np.float32):
    return numpy_helper.from_array(np.asarray(values, dtype), name)


def ints(name, values):
    return array(name, values, np.int64)


def model(nodes, inits=(), inputs=None, outputs=None, functions=(), opset=18, extra=()):
    graph = helper.make_graph(list(nodes), "g", inputs if inputs is not None else [info("x")],
                              outputs if outputs is not None else [info("y", None)], list(inits))
    return helper.make_model(graph, ir_version=8, functions=list(functions),
                             opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("my", 1), *extra])


def tensor(name="w", dims=(2, 4), raw=None, dtype=F32, **kw):
    t = TensorProto(name=name, data_type=dtype, dims=dims, **kw)
    if raw is not None:
        t.raw_data = raw
    return t


def with_weight(t):
    return model([node("Mul", ["x", "w"], ["y"], name="mul")], [t])


# --- the wire format, by hand ---

def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def field(number, body):
    return varint(number << 3 | 2) + varint(len(body)) + body


def wire_model(graph):
    return b"\x08\x08" + field(7, graph) + field(8, b"\x0a\x00\x10\x12")


def wire_graph(nodes, more=b""):
    """Bytes of a graph x -> y around nodes that are bytes already."""
    g = model([], outputs=[info("y", (2, 4))]).graph
    return wire_model(nodes + more + g.SerializeToString())


@case("reject", "messages inside each other")
def nested_200_deep():
    g = b""
    for _ in range(200):
        g = field(1, field(5, field(6, g)))
    return wire_model(g)


@case("reject", "tiny fields", name="five_million_empty_nodes")
def _():
    return wire_graph(b"\x0a\x00" * 5_000_000)


@case("reject", "tiny fields", name="three_million_unknown_fields")
def _():
    return wire_graph(b"\xfa\x3f\x00" * 3_000_000)


@case("reject", "tiny fields", name="two_million_metadata")
def _():
    return b"\x72\x00" * 2_000_000 + wire_graph(field(1, node("Relu", ["x"], ["y"]).SerializeToString()))


@case("reject", "tiny fields", name="a_hundred_thousand_bodies")
def _():
    return wire_graph(field(1, b"\x22\x02If" + field(5, b"\x32\x00")) * 100_000)


@case("reject", "2000000 inputs", name="two_million_inputs_of_a_node")
def _():
    return wire_graph(field(1, b"\x0a\x01x" * 2_000_000 + node("Sum", [], ["y"]).SerializeToString()))


@case("reject", "tiny fields", name="a_node_with_a_million_attributes")
def _():
    return wire_graph(field(1, field(5, b"\x0a\x01a\x18\x01\xa0\x01\x02") * 1_000_000 +
                            node("Relu", ["x"], ["y"]).SerializeToString()))


@case("reject", "100000 attributes", name="a_node_with_many_different_attributes")
def _():
    return model([node("Relu", ["x"], ["y"], **{f"a{i}": i for i in range(100_000)})])


@case("reject", "100002 operator sets", name="a_hundred_thousand_opsets")
def _():
    return model([node("Relu", ["x"], ["y"])], extra=[helper.make_opsetid(f"d{i}", 1) for i in range(100_000)])


@case("reject", "1000000 dimensions", name="a_million_dimensions")
def _():
    return with_weight(tensor(dims=[1] * 1_000_000, raw=b"\0" * 4))


@case("reject", "more than 500000 nodes", name="a_million_nodes")
def _():
    one = [field(1, field(1, b"v%d" % i if i else b"x") + field(2, b"v%d" % (i + 1) if i < 999_999 else b"y") +
                 b"\x22\x04Relu") for i in range(1_000_000)]
    return wire_graph(b"".join(one))


@case("large", name="a_hundred_thousand_nodes")
def _():
    one = [field(1, field(1, b"v%d" % i if i else b"x") + field(2, b"v%d" % (i + 1) if i < 99_999 else b"y") +
                 b"\x22\x04Relu") for i in range(100_000)]
    return wire_graph(b"".join(one))


@case("reject", "Op49 (node", "and more", name="many_unknown_operators")
def _():
    return model([node(f"Op{i}", [f"v{i}"], [f"v{i + 1}"]) for i in range(20_000)] + [
        node("Relu", ["x"], ["v0"]), node("Relu", ["v20000"], ["y"])])


@case("reject", "nothing defines", "more", name="many_defects")
def _():
    return model([node("Relu", [f"absent{i}"], [f"v{i}"]) for i in range(50_000)] + [node("Relu", ["x"], ["y"])])


# --- names ---

@case("reject", "longer than 65535 bytes", name="a_name_of_ten_megabytes")
def _():
    return model([node("Relu", ["n" * 10_000_000], ["y"])])


@case("reject", "nothing defines", "\\u001b]0;owned\\u0007", name="terminal_codes_in_an_error")
def _():
    return model([node("Relu", [EVIL], ["y"], name=EVIL)])


@case("accept", name="terminal_codes_in_names")
def _():
    return model([node("Mul", ["x", EVIL + "w"], [EVIL], name=EVIL), node("Relu", [EVIL], ["y"])],
                 [array(EVIL + "w", np.ones((2, 4)))])


@case("reject", "zero byte", name="zero_bytes_in_names")
def _():
    return model([node("Mul", ["x", "w\0a"], ["h\0a"]), node("Mul", ["h\0a", "w\0b"], ["y"])],
                 [array("w\0a", np.ones((2, 4))), array("w\0b", np.ones((2, 4)))])


@case("either", name="names_that_are_not_utf8")
def _():
    return wire_graph(field(1, field(1, b"x") + field(2, b"\xff\xfe\x9b2J") + b"\x22\x04Relu") +
                      field(1, field(1, b"\xff\xfe\x9b2J") + field(2, b"y") + b"\x22\x04Relu"))


each("reject", {
    "duplicate_outputs": (("already defined",), lambda: model(
        [node("Relu", ["x"], ["h"]), node("Abs", ["x"], ["h"]), node("Relu", ["h"], ["y"])])),
    "duplicate_initializers": (("already defined", "initializer 1", "by initializer 0", "rename"), lambda: model(
        [node("Mul", ["x", "w"], ["y"])], [array("w", 1.0), array("w", 2.0)])),
    "duplicate_inputs": (("already defined",), lambda: model([node("Relu", ["x"], ["y"])], inputs=[info("x"), info("x")])),
    "duplicate_outputs_of_a_node": (("already defined",), lambda: model([node("Split", ["x"], ["y", "y"], num_outputs=2)])),
    "a_node_reads_itself": (("cycle",), lambda: model([node("Add", ["x", "y"], ["y"])])),
    "a_long_cycle": (("cycle",), lambda: model(
        [node("Add", ["x", f"v{(i - 1) % 5000}"], [f"v{i}"]) for i in range(5000)] + [node("Relu", ["v9"], ["y"])])),
    "an_attribute_twice": (("twice",), lambda: with_attributes(helper.make_attribute("axis", 0),
                                                               helper.make_attribute("axis", 1))),
    "an_attribute_of_a_wrong_type": (("axis",), lambda: with_attributes(helper.make_attribute("axis", "one"))),
    "an_attribute_of_floats": (("axis",), lambda: with_attributes(helper.make_attribute("axis", [1.0, 2.0]))),
})


def with_attributes(*attributes):
    n = node("Softmax", ["x"], ["y"], name="soft")
    n.attribute.extend(attributes)
    return model([n])


# --- tensors ---

BIG = 1 << 40
each("reject", {
    "dims_overflow": (("more than can be addressed",), lambda: with_weight(tensor(dims=[1 << 32, 1 << 32, 4], raw=b""))),
    "dims_overflow_to_zero": (("more than can be addressed",), lambda: with_weight(tensor(dims=[1 << 62, 4, 4], raw=b""))),
    "dims_of_2_to_62": (("more than can be addressed",), lambda: with_weight(tensor(dims=[1 << 62], raw=b"\0" * 8))),
    "dims_huge_and_zero": (("broadcast",), lambda: with_weight(tensor(dims=[BIG, BIG, 0], raw=b""))),
    "dims_negative": (("negative",), lambda: with_weight(tensor(dims=[-2, -4], raw=b"\0" * 32))),
    "raw_too_long": (("36 bytes",), lambda: with_weight(tensor(raw=b"\0" * 36))),
    "raw_too_short": (("28 bytes",), lambda: with_weight(tensor(raw=b"\0" * 28))),
    "raw_and_typed": (("both",), lambda: with_weight(tensor(raw=b"\0" * 32, float_data=[0.0] * 8))),
    "typed_too_short": (("7 numbers",), lambda: with_weight(tensor(float_data=[0.0] * 7))),
    "typed_of_another_type": (("fields",), lambda: with_weight(tensor(int64_data=[0] * 8))),
    "terabytes_promised": (("bytes of data",), lambda: with_weight(tensor(dims=[BIG], raw=b"\0" * 4))),
    "type_999": (("999",), lambda: with_weight(tensor(dtype=999, raw=b"\0" * 32))),
    "type_minus_1": (("-1",), lambda: with_weight(tensor(dtype=-1, raw=b"\0" * 32))),
    "nothing_in_it": (("no graph",), lambda: onnx.ModelProto(ir_version=8)),
})


each("either", {
    "input_of_an_exabyte": ((), lambda: model([node("Relu", ["x"], ["y"])], inputs=[info("x", (BIG, BIG))])),
    "input_of_a_terabyte": ((), lambda: model([node("Relu", ["x"], ["y"])], inputs=[info("x", (BIG,))])),
    "external_is_the_model": ((), lambda f: external(f, "model.onnx", content=None)),
    "slice_twice_an_axis": ((), lambda: shaped("Slice", [0, 0], [2, 2], [0, 0])),
})


# --- external data ---

def external(folder, location, offset=0, length=32, content=64, names=("w",)):
    """A model whose weights lie in a file; `content` bytes of it are written if the location is a plain name."""
    if content is not None:
        with open(os.path.join(folder, "weights.bin"), "wb") as f:
            f.write(bytes(content))
    inits = []
    for k, name in enumerate(names):
        t = tensor(name, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", location), ("offset", offset if isinstance(offset, int | str) else offset[k]),
                           ("length", length)):
            t.external_data.add(key=key, value=str(value))
        inits.append(t)
    return model([node("Sum", ["x", *names], ["y"], name="sum")], inits)


def with_link(folder, make):
    target = os.path.join(folder, "..", "target.bin")
    with open(target, "wb") as f:
        f.write(bytes(64))
    make(target, os.path.join(folder, "link.bin"))
    return external(folder, "link.bin", content=None)


def below_a_link(folder):
    os.mkdir(os.path.join(folder, "..", "real"))
    os.symlink("../real", os.path.join(folder, "link"))
    with open(os.path.join(folder, "..", "real", "w.bin"), "wb") as f:
        f.write(bytes(64))
    return external(folder, "link/w.bin", content=None)


def fifo(folder):
    os.mkfifo(os.path.join(folder, "pipe"))
    return external(folder, "pipe", content=None)


each("reject", {
    "external_absolute": (("absolute",), lambda f: external(f, "/etc/passwd")),
    "external_dot_dot": (("'..'",), lambda f: external(f, "../weights.bin")),
    "external_dot_dot_inside": (("'..'",), lambda f: external(f, "a/../weights.bin")),
    "external_device": (("absolute",), lambda f: external(f, "/dev/zero")),
    "external_no_location": (("no file",), lambda f: external(f, "")),
    "external_folder": (("regular",), lambda f: external(f, ".")),
    "external_slash_only": (("absolute",), lambda f: external(f, "//")),
    "external_symlink": (("symbolic link",), lambda f: with_link(f, os.symlink)),
    "external_hard_link": (("hard link",), lambda f: with_link(f, os.link)),
    "external_folder_is_symlink": (("link/w.bin",), below_a_link),
    "external_fifo": (("regular",), fifo),
    "external_absent": (("absent.bin",), lambda f: external(f, "absent.bin", content=None)),
    "external_name_too_long": (("long",), lambda f: external(f, "a" * 100_000, content=None)),
    "external_beyond_the_end": (("only 64",), lambda f: external(f, "weights.bin", offset=48)),
    "external_offset_overflows": (("only 64",), lambda f: external(f, "weights.bin", offset=(1 << 64) - 16)),
    "external_offset_too_many_digits": (("offset",), lambda f: external(f, "weights.bin", offset=1 << 64)),
    "external_offset_negative": (("offset",), lambda f: external(f, "weights.bin", offset=-8)),
    "external_offset_is_text": (("offset",), lambda f: external(f, "weights.bin", offset="0x10")),
    "external_length_wrong": (("16 bytes",), lambda f: external(f, "weights.bin", length=16)),
    "external_length_huge": (("bytes of external data",), lambda f: external(f, "weights.bin", length=(1 << 64) - 1)),
    "external_overlap": (("overlap",), lambda f: external(f, "weights.bin", offset=(0, 16), names=("w", "v"))),
    "external_many_overlaps": (("overlap", "more"), lambda f: external(
        f, "weights.bin", offset=[0] * 20_000, names=[f"w{i}" for i in range(20_000)])),
})


# --- operators: sizes that come out enormous ---

def shaped(op, *values, **attributes):
    """x and constants -> y"""
    names = [f"c{i}" for i in range(len(values))]
    return model([node(op, ["x", *names], ["y"], name="n", **attributes)],
                 [ints(n, v) for n, v in zip(names, values)])


def constant(op, *values, **attributes):
    """constants -> h, which x is added to"""
    names = [f"c{i}" for i in range(len(values))]
    return model([node(op, names, ["h"], name="n", **attributes), node("Cast", ["h"], ["f"], to=F32),
                  node("Add", ["x", "f"], ["y"])], [ints(n, v) for n, v in zip(names, values)])


HUGE = (1 << 62)
FILL = array("v", [1.0])
each("reject", {
    "tile_to_terabytes": ((), lambda: shaped("Tile", [BIG, BIG])),
    "tile_2_to_62": ((), lambda: shaped("Tile", [HUGE, 1])),
    "tile_negative": (("epeat",), lambda: shaped("Tile", [-1, 1])),
    "expand_to_terabytes": ((), lambda: shaped("Expand", [BIG, 2, 4])),
    "expand_to_zebibytes": ((), lambda: shaped("Expand", [BIG, BIG, 2, 4])),
    "expand_negative": (("shape",), lambda: shaped("Expand", [-5, 2, 4])),
    "expand_a_constant": ((), lambda: constant("Expand", [1], [1 << 36])),
    "tile_a_constant": ((), lambda: constant("Tile", [1], [1 << 36])),
    "range_of_2_to_62": ((), lambda: constant("Range", 0, HUGE, 1)),
    "range_of_2_to_36": ((), lambda: constant("Range", 0, 1 << 36, 1)),
    "range_overflow": ((), lambda: constant("Range", -(1 << 63), (1 << 63) - 1, 1)),
    "range_by_zero": ((), lambda: constant("Range", 0, 5, 0)),
    "constant_of_shape": ((), lambda: constant("ConstantOfShape", [1 << 36], value=FILL)),
    "constant_of_shape_overflow": ((), lambda: constant("ConstantOfShape", [HUGE, 8], value=FILL)),
    "constant_of_shape_negative": ((), lambda: constant("ConstantOfShape", [-1], value=FILL)),
    "pad_to_terabytes": ((), lambda: shaped("Pad", [0, BIG, 0, BIG])),
    "pad_overflow": ((), lambda: shaped("Pad", [0, HUGE, 0, HUGE])),
    "pad_below_nothing": ((), lambda: shaped("Pad", [0, -HUGE, 0, -HUGE])),
    "pad_smallest": ((), lambda: shaped("Pad", [0, -(1 << 63), 0, -(1 << 63)])),
    "split_into_millions": ((), lambda: shaped("Split", num_outputs=10_000_000)),
    "split_sizes_overflow": ((), lambda: model(
        [node("Split", ["x", "s"], ["y", "z"], axis=1)], [ints("s", [HUGE * 2 - 1, HUGE * 2 - 1])])),
    "split_sizes_negative": ((), lambda: model(
        [node("Split", ["x", "s"], ["y", "z"], axis=1)], [ints("s", [-1, 5])])),
    "reshape_overflow": ((), lambda: shaped("Reshape", [HUGE, 8])),
    "reshape_two_unknowns": ((), lambda: shaped("Reshape", [-1, -1])),
    "reshape_negative": ((), lambda: shaped("Reshape", [-2, -4])),
    "reshape_overflow_to_match": ((), lambda: shaped("Reshape", [HUGE, 4, 8, 1 << 32, 1 << 32])),
    "unsqueeze_far": ((), lambda: shaped("Unsqueeze", [HUGE])),
    "unsqueeze_same_twice": ((), lambda: shaped("Unsqueeze", [0, 0])),
    "unsqueeze_many": ((), lambda: shaped("Unsqueeze", list(range(1000)))),
    "squeeze_far": ((), lambda: shaped("Squeeze", [-HUGE])),
    "slice_by_zero": ((), lambda: shaped("Slice", [0], [2], [0], [0])),
    "gather_beyond": ((), lambda: shaped("Gather", [7])),
    "transpose_twice": ((), lambda: shaped("Transpose", perm=[0, 0])),
    "transpose_far": ((), lambda: shaped("Transpose", perm=[HUGE, 0])),
    "concat_axis_far": ((), lambda: shaped("Concat", axis=-(1 << 63))),
    "flatten_far": ((), lambda: shaped("Flatten", axis=HUGE)),
    "softmax_smallest": ((), lambda: shaped("Softmax", axis=-(1 << 63))),
    "topk_huge": ((), lambda: model([node("TopK", ["x", "k"], ["y", "i"])], [ints("k", [HUGE])])),
    "topk_negative": ((), lambda: model([node("TopK", ["x", "k"], ["y", "i"])], [ints("k", [-1])])),
    "one_hot_huge": ((), lambda: model(
        [node("Cast", ["x"], ["i"], to=I64), node("OneHot", ["i", "d", "v"], ["y"])],
        [ints("d", BIG), array("v", [0.0, 1.0])])),
    "cast_to_999": ((), lambda: shaped("Cast", to=999)),
    "einsum_garbage": ((), lambda: shaped("Einsum", equation="\x1b[2J->->ij...")),
    "einsum_long": ((), lambda: shaped("Einsum", equation="i" * 1_000_000 + "->i")),
    "loop_2_to_62": ((), lambda: loop(HUGE)),
    "loop_400000": ((), lambda: loop(400_000)),
    "loop_30000_of_a_large_body": (("unrolls",), lambda: large_body(30_000, 20_000)),
    "loop_doubles_80_times": (("larger than memory can be",), lambda: doubling(80)),
    "loops_inside_loops": ((), lambda: nested_loops(3, 1000)),
    "function_calls_itself": (("calls itself",), lambda: functions([["G"], ["F"]], ["F", "G"])),
    "billion_laughs": ((), lambda: laughs(10, 12)),
    "a_million_laughs": ((), lambda: laughs(10, 6)),
})


def image(op, weight=None, shape=(1, 2, 8, 8), **attributes):
    return model([node(op, ["x", "w"] if weight else ["x"], ["y"], name="n", **attributes)],
                 [array("w", np.zeros(weight))] if weight else [], [info("x", shape)])


EXTREME = (HUGE, HUGE)
each("reject", {
    "conv_pads_huge": ((), lambda: image("Conv", (2, 2, 3, 3), pads=EXTREME * 2)),
    "conv_pads_negative": ((), lambda: image("Conv", (2, 2, 3, 3), pads=(-5, -5, -5, -5))),
    "conv_pads_too_few": ((), lambda: image("Conv", (2, 2, 3, 3), pads=(1,))),
    "conv_stride_zero": ((), lambda: image("Conv", (2, 2, 3, 3), strides=(0, 0))),
    "conv_stride_negative": ((), lambda: image("Conv", (2, 2, 3, 3), strides=(-1, 1))),
    "conv_dilation_huge": ((), lambda: image("Conv", (2, 2, 3, 3), dilations=EXTREME)),
    "conv_group_negative": ((), lambda: image("Conv", (2, 2, 3, 3), group=-1)),
    "conv_group_huge": ((), lambda: image("Conv", (2, 2, 3, 3), group=HUGE)),
    "conv_kernel_shape_lies": ((), lambda: image("Conv", (2, 2, 3, 3), kernel_shape=(5, 5))),
    "conv_transpose_output_huge": ((), lambda: image("ConvTranspose", (2, 2, 3, 3), output_padding=EXTREME)),
    "conv_transpose_stride_huge": ((), lambda: image("ConvTranspose", (2, 2, 3, 3), strides=EXTREME)),
    "pool_kernel_huge": ((), lambda: image("MaxPool", kernel_shape=EXTREME)),
    "pool_kernel_zero": ((), lambda: image("MaxPool", kernel_shape=(0, 0))),
    "pool_kernel_negative": ((), lambda: image("AveragePool", kernel_shape=(-3, -3))),
    "pool_stride_zero": ((), lambda: image("AveragePool", kernel_shape=(2, 2), strides=(0, 0))),
    "pool_without_kernel": ((), lambda: image("MaxPool")),
    "space_to_depth_zero": ((), lambda: image("SpaceToDepth", blocksize=0)),
    "space_to_depth_huge": ((), lambda: image("SpaceToDepth", blocksize=HUGE)),
    "depth_to_space_negative": ((), lambda: image("DepthToSpace", blocksize=-2)),
    "depth_to_space_smallest": ((), lambda: image("DepthToSpace", blocksize=-(1 << 63))),
    "layer_norm_axis_far": ((), lambda: image("LayerNormalization", (8,), axis=HUGE)),
    "resize_huge": ((), lambda: model([node("Resize", ["x", "", "", "s"], ["y"])],
                                      [ints("s", [1, 2, 1 << 31, 1 << 31])], [info("x", (1, 2, 8, 8))])),
    "resize_scale_nan": ((), lambda: model([node("Resize", ["x", "", "s"], ["y"])],
                                           [array("s", [1, 1, np.nan, np.inf])], [info("x", (1, 2, 8, 8))])),
})
each("accept", {
    "zero_dims": ((), lambda: model([node("Mul", ["x", "w"], ["y"])], [array("w", np.zeros((0, 4)))],
                                    inputs=[info("x", (0, 4))])),
    "unused_function_calls_itself": ((), lambda: model(
        [node("Relu", ["x"], ["y"])], functions=[function("F", [node("Relu", ["a"], ["b"])])])),
})


# --- control flow and functions ---

def body(nodes, inputs, outputs, name="b"):
    return helper.make_graph(nodes, name, inputs, outputs)


def loop(trips):
    b = body([node("Relu", ["s"], ["t"]), node("Identity", ["c"], ["d"])],
             [info("i", (), I64), info("c", (), BOOL), info("s", None)], [info("d", (), BOOL), info("t", None)])
    return model([node("Loop", ["m", "", "x"], ["y"], name="n", body=b)], [ints("m", trips)])


def doubling(trips):
    b = body([node("Concat", ["s", "s"], ["t"], axis=0), node("Identity", ["c"], ["d"])],
             [info("i", (), I64), info("c", (), BOOL), info("s", None)], [info("d", (), BOOL), info("t", None)])
    return model([node("Loop", ["m", "", "x"], ["y"], name="n", body=b)], [ints("m", trips)])


def large_body(trips, constants):
    b = body([node("Relu", ["s"], ["t"]), node("Identity", ["c"], ["d"])],
             [info("i", (), I64), info("c", (), BOOL), info("s", None)], [info("d", (), BOOL), info("t", None)])
    b.initializer.extend(array(f"k{k}", [1.0]) for k in range(constants))
    return model([node("Loop", ["m", "", "x"], ["y"], name="n", body=b)], [ints("m", trips)])


def collecting(trips):
    b = body([node("Relu", ["s"], ["t"]), node("Identity", ["c"], ["d"]), node("Identity", ["t"], ["o"])],
             [info("i", (), I64), info("c", (), BOOL), info("s", None)],
             [info("d", (), BOOL), info("t", None), info("o", None)])
    return model([node("Loop", ["m", "", "x"], ["y", "all"], name="n", body=b)], [ints("m", trips)])


def nested_loops(depth, trips):
    inner = [node("Relu", ["s0"], ["t0"])]
    for k in range(depth):
        b = body(inner + [node("Identity", [f"c{k}"], [f"d{k}"])],
                 [info(f"i{k}", (), I64), info(f"c{k}", (), BOOL), info(f"s{k}", None)],
                 [info(f"d{k}", (), BOOL), info(f"t{k}", None)])
        inner = [node("Loop", ["m", "", f"s{k + 1}"], [f"t{k + 1}"], body=b)]
    inner[0].input[2], inner[0].output[0] = "x", "y"
    return model(inner, [ints("m", trips)])


each("large", {
    "loop_collects_20000_times": ((), lambda: collecting(20_000)),
    "sum_of_a_thousand_times_one_value": ((), lambda: model([node("Sum", ["x"] * 1000, ["y"])])),
})


@case("accept", name="thirty_ifs_inside_each_other")
def _():
    inner = [node("Relu", ["x"], ["r0"])]
    for k in range(30):
        inner = [node("If", ["yes"], [f"r{k + 1}"], then_branch=body(inner, [], [info(f"r{k}", None)]),
                      else_branch=body([node("Abs", ["x"], [f"e{k}"])], [], [info(f"e{k}", None)]))]
    inner[0].output[0] = "y"
    return model(inner, [array("yes", True, bool)])


def function(name, nodes):
    return helper.make_function("my", name, ["a"], ["b"], nodes,
                                [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)])


def functions(calls, names):
    return model([node(names[0], ["x"], ["y"], domain="my")], functions=[
        function(n, [node(c, ["a"], ["b"], domain="my") for c in called]) for n, called in zip(names, calls)])


def laughs(wide, deep):
    """A tower of functions, each calling the next one `wide` times."""
    made = [function("F0", [node("Relu", ["a"], ["b"])])]
    for k in range(1, deep + 1):
        chain = [node(f"F{k - 1}", [f"v{i}" if i else "a"], [f"v{i + 1}" if i < wide - 1 else "b"], domain="my")
                 for i in range(wide)]
        made.append(function(f"F{k}", chain))
    return model([node(f"F{deep}", ["x"], ["y"], domain="my")], functions=made)


@case("large", name="functions_five_thousand_deep")
def _():
    made = [function("F0", [node("Relu", ["a"], ["b"])])]
    made += [function(f"F{k}", [node(f"F{k - 1}", ["a"], ["b"], domain="my")]) for k in range(1, 5000)]
    return model([node("F4999", ["x"], ["y"], domain="my")], functions=made)

"""A quantized file and the same without some of its pairs, compared message by message."""

import onnx

PAIR = ("QuantizeLinear", "DequantizeLinear")


def same_but_for_pairs(before, after):
    """Asserts that two files differ in pairs alone; returns the nodes of the first that the second lacks.

    A Clip of the second with new constants may stand for a Relu that a pair replaced.
    """
    first, second = onnx.ModelProto.FromString(before.read_bytes()), onnx.ModelProto.FromString(after.read_bytes())
    makers = {name: node for node in first.graph.node for name in node.output}
    outputs, missing = {value.name for value in first.graph.output}, []
    clips = {
        node.output[0]: node for node in second.graph.node if node.op_type == "Clip" and node.output[0] not in makers
    }
    kept = iter([node for node in second.graph.node if node.output[0] not in clips] + [onnx.NodeProto()])
    node = next(kept)
    for old in first.graph.node:
        if old.output != node.output:
            missing.append(old)
            continue
        if node.op_type != old.op_type:
            assert node.op_type == "Identity"
            assert old.op_type == "DequantizeLinear"
            assert old.output[0] in outputs
            assert node.input[0] in before_pairs(old.output[0], makers)
        else:
            moved = [(name, new) for name, new in zip(old.input, node.input, strict=True) if name != new]
            moved = [(name, clips[new].input[0] if new in clips else new) for name, new in moved]
            assert all(new in before_pairs(name, makers) for name, new in moved)
            old.input[:] = node.input
            assert old == node
        node = next(kept)
    assert node == onnx.NodeProto()
    constants = {name for clip in clips.values() for name in clip.input[1:]}
    added = [tensor for tensor in second.graph.initializer if tensor.name in constants]
    assert len(added) == len(constants)
    for tensor in added:
        second.graph.initializer.remove(tensor)
    for model in (first, second):
        model.graph.ClearField("node")
    assert first == second
    return missing


def before_pairs(name, makers):
    """The tensors that the Q nodes before a tensor read."""
    read = set()
    while name in makers and makers[name].op_type in (*PAIR, "Identity"):
        is_read = makers[name].op_type == "QuantizeLinear"
        name = makers[name].input[0]
        read |= {name} if is_read else set()
    return read

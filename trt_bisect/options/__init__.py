"""The options of the commands, each declared once: validation, command line, TOML and documentation come from here."""

ARGUMENTS = "Arguments"
# The panels in the order of the help, each with the keywords of its options, then of those that ``--help-all`` adds. An
# option that is in another panel in one command says so where it is declared.
PANELS = {
    ARGUMENTS: ("model function suite folder folders other where", ""),
    "Data": ("shapes calibration inputs dataset validation networks steps keep cache layers tensors", ""),
    "Pictures": ("resize letterbox scale mean std", "colors"),
    "Judgement": (
        "task metric threshold outputs samples labels accuracy",
        "reference head score_threshold class_axis accept",
    ),
    "Goal": ("budget drop front", "cost gpu"),
    "Precision": ("calibrator low engine precision layer_precisions", "base unquantized trt_version"),
    "Layers": ("high prefix op_types", "plugins fuse_norms plan keep_low scoped only one_scale"),
    "Search": ("effort time_limit most_calls", "strategy curve margin as_is"),
    "Results": (
        "output progress explain csv parquet copy",
        "tensorboard tensorboard_detail save_tensors history",
    ),
    "Comparison": ("recipe fp32 int8 sort other_outputs other_layers", ""),
    "Runs": ("label since fingerprint add", ""),
    "Night": ("suite_file baseline update_baseline", ""),
    "Server": ("host port token tls certificate key", ""),
    "TensorRT": ("", "typing trtexec dla"),
    "Resources": ("", "device memory cluster"),
    "Display": (
        "json quiet config top columns way order everything weight_scales annotations yes",
        "verbose all_layers",
    ),
}

# SPDX-License-Identifier: Apache-2.0
"""What an option is called here that the command line, or another trainer, calls otherwise, and what functions of C are."""
from __future__ import annotations

import difflib
import re
from typing import Dict, Sequence

#: Options of the program that are something else here.
_OF_THE_PROGRAM = {
    "mode": "modes={'GLOB': MODE}",
    "loss_output": "loss_outputs=['NAME']",
    "group": "groups=[Group(...)]",
    "plan": "plan_text",
    "unfreeze_after": "stages={'GLOB': STEP}",
    "lora": "Model.add_lora(['GLOB'])",
    "head": "Model.set_head(N)",
    "epochs": "Trainer.fit(data, epochs=N)",
    "batch": "batches of so many rows, in Trainer.step and fit",
    "schedule": "lr=Schedule(kind, lr, total=STEPS)",
    "warmup": "lr=Schedule(..., warmup='10%') or in steps",
    "lora_dropout": "Model.add_lora([...], dropout=P)",
    "rank": "Model.add_lora([...], rank=R)",
    "alpha": "Model.add_lora([...], alpha=A)",
    "min_lr": "Schedule(..., min_lr=X)",
    "power": "Schedule(..., power=X)",
    "step_every": "Schedule('step', lr, every=N)",
    "step_factor": "Schedule('step', lr, every=N, factor=X)",
    "decay_steps": "Schedule('wsd', lr, total=STEPS, decay=N)",
    "layout": "Trainer.save(path, layout=...)",
    "resume": "Trainer.load_state(path)",
    "checkpoint": "Trainer.save_state(path)",
    "out": "Trainer.save(path)",
    "plugin": "invonnx.load(path, plugins=[FILE])",
    "no_rules": "invonnx.load(path, rules=False)",
    "deterministic": "cost='flops'",
}
#: What to give for the words of other trainers, which cli/options/other_words.inc has for the program.
_OF_OTHERS: Dict[str, str] = {
    "lr": "learning_rate base_lr init_lr",
    "batches of so many rows, in Trainer.step and fit": (
        "batch_size train_batch_size per_device_train_batch_size per_gpu_train_batch_size micro_batch_size "
        "eval_batch_size per_device_eval_batch_size"),
    "Trainer.fit(data, epochs=N)": "num_epochs num_train_epochs max_epochs n_epochs",
    "so many calls of Trainer.step": "max_steps num_steps train_steps max_train_steps",
    "clip_norm": "max_grad_norm clip_grad_norm clip_grad clipnorm gradient_clip_val",
    "clip_value": "clipvalue",
    "accumulate": "gradient_accumulation_steps accumulate_grad_batches grad_accum_steps",
    "Model.add_lora([...], alpha=A)": "lora_alpha",
    "Model.add_lora([...], rank=R)": "lora_r lora_rank",
    "Model.add_lora(['GLOB'])": "target_modules lora_target_modules use_lora",
    "train_only=['GLOB']": "modules_to_save",
    "lr=Schedule(..., warmup='10%') or in steps": "warmup_ratio warmup_steps num_warmup_steps warmup_epochs",
    "lr=Schedule(kind, lr, total=STEPS)": "lr_scheduler_type lr_scheduler lr_schedule scheduler sched",
    "Schedule('step', lr, every=N)": "lr_step_size",
    "Schedule('step', lr, every=N, factor=X)": "lr_gamma gamma",
    "Schedule(..., min_lr=X)": "min_learning_rate",
    "optimizer": "optim opt",
    "beta1": "adam_beta1",
    "beta2": "adam_beta2",
    "epsilon": "adam_epsilon eps",
    "weight_decay": "wd l2",
    "loss": "loss_function criterion",
    "label_smoothing": "label_smoothing_factor smoothing",
    "class_weights": "class_weight",
    "Trainer.save(path)": "output_dir output",
    "Trainer.save_state(path)": "save_dir checkpoint_dir save_steps save_total_limit",
    "Trainer.load_state(path)": "resume_from_checkpoint ckpt_path",
    "Trainer.evaluate_all(data) in a callback": (
        "load_best_model_at_end metric_for_best_model eval_steps val_check_interval"),
    "Trainer.evaluate_all(data) and Trainer.outputs()": "metrics",
    "a callback that returns True": "early_stopping_patience",
    "Trainer.evaluate_all(data)": "validation_split val_ratio validation_data validation_file do_eval",
    "Trainer.fit(data)": "train_file train_data dataset data_dir do_train",
    "Trainer.fit of pairs (x, y)": "labels targets",
    "Model.set_head(N)": "num_classes num_labels",
    "what gives the batches": (
        "num_workers workers dataloader_num_workers dataloader_drop_last block_size max_seq_length max_length "
        "seq_len"),
    "threads": "num_threads",
    "seed": "random_seed",
    "Trainer.log": "logging_dir logging_steps log_dir report_to",
    "memory='recompute', or budget=BYTES": "gradient_checkpointing activation_checkpointing",
    "precision='bf16' on a GPU, or weights='bf16'": "bf16",
    "precision='tf32'": "tf32",
    "precision='tf32' or 'bf16' on a GPU, or weights='bf16'": "fp16",
    "precision='bf16'": "amp",
    "precision": "mixed_precision",
    "Model.add_lora on a quantized file": "load_in_4bit load_in_8bit",
    "freeze=['GLOB']": "freeze_layers",
    "average='ema:DECAY'": "ema_decay model_ema model_ema_decay use_ema",
    "invonnx.load(path)": "model_name_or_path model",
    "`mpirun -n N invonnx train --shard` (docs/scaling.md)": "fsdp deepspeed zero_stage",
    "`mpirun -n N invonnx train` (docs/scaling.md)": "nproc_per_node",
    "device": "gpus",
    "device='cpu'": "no_cuda use_cpu",
    "Trainer.save(path), which replaces the file": "overwrite_output_dir",
}
_WORDS: Dict[str, str] = {word: ours for ours, words in _OF_OTHERS.items() for word in words.split()}
_WORDS.update(_OF_THE_PROGRAM)


#: Functions of C that messages of the library name.
_OF_C: Dict[str, str] = {
    "inv_context_load_plugin": "invonnx.load",
    "inv_model_add_lora": "Model.add_lora",
    "inv_model_load": "invonnx.load",
    "inv_model_load_with": "invonnx.load",
    "inv_model_set_head": "Model.set_head",
    "inv_session_backward": "Trainer.backward",
    "inv_session_forward": "Trainer.forward",
    "inv_session_get": "Session.get",
    "inv_session_push_modes": "Trainer.modes",
    "inv_session_resize": "Trainer.open",
    "inv_session_set_step": "Trainer.set_step",
    "inv_session_update": "Trainer.update",
    "inv_session_use_average": "the end of `with Trainer.averages()`",
}


def in_python(message: str) -> str:
    """A message of the library in the words of this package."""
    return re.sub(r"\binv_[a-z_]+", lambda found: _OF_C.get(found[0], found[0]), message)


def unknown_option(name: str, known: Sequence[str]) -> str:
    """The message about an option that there is not."""
    near = difflib.get_close_matches(name, known, 1, 0.7)
    if name in _WORDS:
        return f"there is no option {name!r}: here it is {_WORDS[name]}"
    return f"there is no option {name!r}" + (f": did you mean {near[0]!r}?" if near else "")

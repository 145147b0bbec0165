"""The rooms of each package, from the bottom up, and which of the rooms above a line each may import.

A room is a folder of a package, or a module that stands in its root. tests/test_layering.py holds the source
to this table: what a room needs beside its line is either a mistake or a line to be changed here, on purpose.
"""

from __future__ import annotations

ENGINE_CORE = {
    "errors": "",
    "settings": "errors",
    "clock": "",
    "near_names": "",
    "batch_lines": "",
    "suspects": "",
    "process": "clock errors",
    "ranges": "errors",
    "sequence_sampling": "errors ranges",
    "structured_outputs": "errors near_names",
    "sampling_params": "errors near_names ranges sequence_sampling structured_outputs",
    "ipc": "errors process sequence_sampling settings",
    "adapter": "ipc",
    "checkpoint": "errors sequence_sampling",
    "kept": "checkpoint errors ipc process",
    "config": "errors ipc process settings",
    "repetition": "sequence_sampling",
    "request": "adapter errors ipc repetition sequence_sampling",
    "kv_events": "clock config errors ipc process request",
    "kv_cache": "config errors ipc kept kv_events request",
    "scheduler": "adapter config errors ipc kv_cache request",
    "executor": "checkpoint clock config errors ipc kept process sequence_sampling settings",
    "model_check": "checkpoint config errors executor settings",
    "engine": "adapter checkpoint clock config errors ipc kept kv_cache kv_events process request scheduler "
    "settings suspects",
    "server": "checkpoint clock config engine errors executor ipc kept kv_cache kv_events process request "
    "sequence_sampling settings",
    "fit": "clock config errors executor ipc server settings",
    "cli": "checkpoint clock config errors executor fit model_check process server settings",
    "launcher": "checkpoint clock config errors ipc kept model_check process settings",
}
FRONTEND = {
    "_native": "",
    "typed_json": "",
    "unknown_fields": "typed_json",
    "text": "_native typed_json",
    "observability": "",
    "store_settings": "observability",
    "batch_settings": "store_settings",
    "api_settings": "batch_settings text",
    "config": "api_settings",
    "database": "",
    "response_store": "database",
    "launch": "config",
    "engines": "_native text",
    "metrics": "engines launch",
    "http": "config engines metrics observability typed_json",
    "openai": "config engines http metrics observability text typed_json unknown_fields",
    "anthropic": "engines http openai text",
    "responses": "engines http observability openai response_store text",
    "operator": "engines http metrics openai",
    "offline": "engines metrics text typed_json unknown_fields",
    "openapi": "anthropic http openai responses",
    "endpoints": "",
    "batches": "config database endpoints engines http openai openapi response_store responses",
    "routes": "anthropic endpoints http openai openapi responses",
    "operator_routes": "endpoints engines http metrics openai openapi operator",
    "docs_page": "",
    "page": "http",
    "app": "batches config database docs_page engines http launch metrics observability openai openapi "
    "operator operator_routes page response_store responses routes unknown_fields",
    "http_server": "app config engines http launch",
    "cli": "batches config database http http_server response_store responses text",
}
WORKER = {
    "_native": "",
    "host": "",
    "pages": "",
    "config": "",
    "ops": "_native pages",
    "device": "host ops pages",
    "parallel": "_native config device ops",
    "kv_cache": "device host parallel",
    "attention": "device kv_cache ops pages",
    "batch": "attention device ops parallel",
    "layers": "attention device kv_cache ops parallel",
    "weights": "device layers ops",
    "generic": "attention device kv_cache layers ops parallel weights",
    "models": "attention config device generic kv_cache layers ops parallel weights",
    "grammar": "batch ops",
    "lora": "layers weights",
    "sampling": "batch device grammar models ops",
    "graphs": "attention batch device kv_cache models ops parallel",
    "speculation": "batch device grammar graphs kv_cache models ops parallel sampling",
    "model_runner": "attention batch device kv_cache models ops parallel sampling speculation",
    "largest_step": "batch model_runner",
    "warm_up": "batch model_runner",
    "gpu_ranks": "batch device largest_step model_runner",
    "numerics": "config device kv_cache models ops",
    "memory": "config device layers model_runner models weights",
    "worker": "attention batch config device gpu_ranks grammar graphs host kv_cache largest_step layers lora "
    "memory model_runner models numerics ops parallel sampling speculation warm_up weights",
    "death_signal": "",
    "engine_link": "",
    "serving": "batch config death_signal engine_link worker",
    "loop": "config engine_link serving worker",
    "cli": "death_signal loop",
    "ray": "cli",
}
CLIENT = {
    "http": "",
    "sampling_fields": "",
    "commands": "",
    "target": "http",
    "bench": "commands http sampling_fields target",
    "chat": "http sampling_fields target",
    "batch": "http target",
    "shell": "",
    "top": "http target",
}
ROOMS = {"engine_core": ENGINE_CORE, "frontend": FRONTEND, "worker": WORKER, "client": CLIENT}

# What the other packages may import of engine_core: the wire, what both sides of it check, how processes are
# started, and how commands read flags and word their errors.
SHARED = {
    "frontend": "batch_lines checkpoint config errors ipc kept near_names process sampling_params "
    "sequence_sampling settings structured_outputs suspects",
    "worker": "checkpoint config errors ipc kept process sequence_sampling settings",
    "client": "batch_lines checkpoint config errors process settings",
}

# Imports against the table, module -> module, each with the reason why it stands.
AGAINST_THE_TABLE = {
    ("engine_core.launcher.serve_settings", "frontend.config"): "`serve` takes the flags declared there",
    ("engine_core.launcher.cli", "client.commands"): "`splitserve` has the commands listed there",
}
# Lines of a class, and modules of a folder beside __init__.py; without exception so far.
MAX_CLASS_LINES = 250
MAX_FILES = 15

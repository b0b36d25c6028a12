"""What `.github/deploy` says is checked as far as it can be without a container engine.

Whether the images exist and the Dockerfile builds is not: that takes an engine and a network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer
import yaml

from hybridagi_steps.cli.app import application
from hybridagi_steps.cli.serve import DEFAULT_PORT, TOKEN_VARIABLE
from hybridagi_steps.stores.postgres.following import FOLDER_VARIABLE
from tests.cluster.deployment import (
    DEPLOY,
    Instruction,
    command_of,
    compose,
    copied_paths,
    dockerfile,
    filled,
    installed_extras,
    our_services,
    settings_of,
    stages,
    variables_of,
)

ROOT = DEPLOY.parents[1]
GIVEN = {"HYBRIDAGI_STEPS_TOKEN": "t" * 16, "STEPS_DB_PASSWORD": "p"}
SECRET = re.compile(r"TOKEN|PASSWORD|SECRET|_KEY", re.IGNORECASE)
DRIVERS = {"PGPASSWORD", "OPENAI_API_KEY", "PYTHONPATH", "PYTHONUNBUFFERED", "DSPY_CACHEDIR"}
"""Variables that libpq, LiteLLM, Python and DSPy know."""


def known_variables() -> set[str]:
    """Return the environment variables that something reads which we start."""
    commands: Any = typer.main.get_command(application())
    options = {
        str(option.envvar)
        for name in ("serve", "worker")
        for option in commands.commands[name].params
        if getattr(option, "envvar", None)
    }
    program = (DEPLOY / "program.py").read_text("utf-8")
    asked = set(re.findall(r'os\.environ\["(\w+)"\]', program))
    return {*options, *asked, *DRIVERS, TOKEN_VARIABLE, FOLDER_VARIABLE}


def parsed(words: list[str]) -> dict[str, Any]:
    """Return what the command line understands of a command; it raises what it does not know."""
    name, *arguments = words
    command: Any = typer.main.get_command(application(name))
    return command.commands[name].make_context(name, arguments, resilient_parsing=False).params


KEYS = set(
    """attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs
    container_name cpus cpuset depends_on deploy develop devices dns dns_opt dns_search entrypoint
    env_file environment expose extends external_links extra_hosts group_add healthcheck hostname
    image init ipc isolation labels links logging mac_address mem_limit memswap_limit network_mode
    networks oom_kill_disable pid pids_limit platform ports privileged profiles pull_policy
    read_only restart runtime scale secrets security_opt shm_size stdin_open stop_grace_period
    stop_signal storage_opt sysctls tmpfs tty ulimits user userns_mode volumes volumes_from
    working_dir""".split()  # noqa: SIM905 - names read better so
)
"""Of a service, as https://github.com/compose-spec/compose-spec names them."""
KINDS: dict[str, type | tuple[type, ...]] = {
    "command": list, "environment": dict, "ports": list, "volumes": list, "secrets": list,
    "depends_on": dict, "healthcheck": dict, "build": dict, "tmpfs": list, "cap_drop": list,
    "security_opt": list, "image": str, "restart": str, "shm_size": str, "stop_grace_period": str,
    "init": bool, "read_only": bool,
}  # fmt: skip
"""What we write there."""


class TestCompose:
    def test_each_key_is_one_of_the_specification_with_a_value_of_its_kind(self) -> None:
        whole = compose()
        assert {key for key in whole if not key.startswith("x-")} <= {
            *("name", "services", "networks", "volumes", "configs", "secrets", "include")
        }
        for name, service in whole["services"].items():
            assert set(service) <= KEYS, name
            for key, value in service.items():
                assert isinstance(value, KINDS[key]), (name, key)
            for key in ("command", "ports", "volumes", "secrets", "tmpfs"):
                assert all(isinstance(each, str) for each in service.get(key, ())), (name, key)
            check = service.get("healthcheck", {})
            assert set(check) <= {
                *("test", "interval", "timeout", "retries", "start_period", "disable")
            }
            for value in service.get("environment", {}).values():
                assert isinstance(value, str), name
            for needed in service.get("depends_on", ()):
                assert needed in whole["services"]

    def test_there_are_a_database_two_servers_two_workers_and_metrics(self) -> None:
        kinds = [command_of(service, GIVEN)[0] for service in our_services().values()]
        assert sorted(kinds) == ["serve", "serve", "worker", "worker"]
        assert {"database", "prometheus"} == set(compose()["services"]) - set(our_services())

    @pytest.mark.parametrize("name", sorted(our_services()))
    def test_its_command_is_one_of_the_command_line_with_those_options(self, name: str) -> None:
        asked = parsed(command_of(our_services()[name], GIVEN))
        assert asked["program"] == "program:assistant"
        if name.startswith("server"):
            assert asked["host"] == "0.0.0.0"  # noqa: S104 - of a container
            assert asked["allow_host"] == [name], "Prometheus asks for it by its name"

    def test_a_misspelt_option_would_be_seen(self) -> None:
        with pytest.raises(Exception, match="--prgram"):
            parsed(["serve", "--prgram", "x:y"])

    @pytest.mark.parametrize("name", sorted(our_services()))
    def test_somebody_reads_each_variable_that_it_sets(self, name: str) -> None:
        assert set(our_services()[name]["environment"]) <= known_variables()

    def test_secrets_come_from_outside_and_are_asked_for(self) -> None:
        for service in compose()["services"].values():
            environment: dict[str, str] = service.get("environment", {})
            for name, value in environment.items():
                if SECRET.search(name):
                    assert re.fullmatch(r"\$\{\w+:[-?].*\}", value), name
        text = (DEPLOY / "compose.yaml").read_text("utf-8")
        with pytest.raises(KeyError):
            filled(text, {})
        assert set(GIVEN) <= variables_of(text)

    def test_a_server_may_drain_before_it_is_killed(self) -> None:
        for name, service in our_services().items():
            grace = int(service["stop_grace_period"].removesuffix("s"))
            asked = parsed(command_of(service, GIVEN))
            assert asked["drain" if name.startswith("server") else "grace"] < grace

    @pytest.mark.parametrize("name", sorted(our_services()))
    def test_a_process_may_do_no_more_than_it_must(self, name: str) -> None:
        service = our_services()[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["depends_on"]["database"]["condition"] == "service_healthy"

    def test_ports_are_for_this_machine_alone_and_are_listened_on(self) -> None:
        ports = [port for one in compose()["services"].values() for port in one.get("ports", ())]
        assert len(ports) == 3
        assert [port for port in ports if not port.startswith("127.0.0.1:")] == []
        served = {port.rpartition(":")[2] for one in our_services().values()
                  for port in one.get("ports", ())}  # fmt: skip
        assert served == {str(DEFAULT_PORT)}

    def test_what_it_mounts_and_builds_from_is_there(self) -> None:
        whole = compose()
        for service in whole["services"].values():
            for place in service.get("volumes", ()):
                source = place.split(":")[0]
                assert source in whole["volumes"] or (DEPLOY / source).is_file(), source
        for service in our_services().values():
            context = DEPLOY / service["build"]["context"]
            assert context.resolve() == ROOT
            assert (context / service["build"]["dockerfile"]).is_file()

    def test_prometheus_asks_every_server_with_the_token(self) -> None:
        asked = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
        [job] = asked["scrape_configs"]
        [targets] = [one["targets"] for one in job["static_configs"]]
        servers = [name for name in our_services() if name.startswith("server")]
        assert targets == [f"{name}:{DEFAULT_PORT}" for name in servers]
        [secret] = compose()["services"]["prometheus"]["secrets"]
        assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"
        assert compose()["secrets"][secret] == {"environment": TOKEN_VARIABLE}


class TestDockerfile:
    def test_every_instruction_is_one(self) -> None:
        known = "FROM WORKDIR COPY RUN ENV USER EXPOSE HEALTHCHECK ENTRYPOINT CMD".split()  # noqa: SIM905 - reads better so
        assert [one for one in dockerfile() if one.name not in known] == []

    def test_the_wheel_is_built_in_a_stage_of_its_own_and_nothing_else_of_it_is_kept(self) -> None:
        build, runtime = stages()
        assert build[0].words.endswith(" AS build")
        assert any("pip wheel" in one.words for one in build if one.name == "RUN")
        assert [one for one in runtime if one.name == "COPY"] == []
        [install] = [one.words for one in runtime if "pip install" in one.words]
        assert "from=build,source=/wheels" in install
        assert all(one[0].words.startswith("python:3.11-slim-") for one in (build, runtime))

    def test_what_it_takes_along_is_there_and_not_ignored(self) -> None:
        ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
        assert ignored[0] == "*"
        sources = [str(path.relative_to(ROOT)) for path in copied_paths()]
        mounted = re.findall(r"bind,source=([^,]+)", " ".join(one.words for one in stages()[1]))
        for source in [*sources, *mounted]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in ignored, source

    def test_it_installs_the_extras_that_its_processes_need(self) -> None:
        assert installed_extras() >= {"server", "durable", "postgres"}

    def test_it_runs_as_nobody_in_particular_and_is_asked_whether_it_lives(self) -> None:
        runtime = stages()[1]
        order = [one.name for one in runtime]
        [user] = [one.words for one in runtime if one.name == "USER"]
        assert user.isdecimal()
        assert int(user) > 0
        assert order.index("USER") > max(at for at, name in enumerate(order) if name == "RUN")
        assert order[-2:] == ["ENTRYPOINT", "CMD"]
        [check] = [one.words for one in runtime if one.name == "HEALTHCHECK"]
        assert f"127.0.0.1:{DEFAULT_PORT}/healthz" in check
        assert f"{DEFAULT_PORT}" in [one.words for one in runtime if one.name == "EXPOSE"]

    def test_no_secret_is_in_the_image(self) -> None:
        words = [one for one in dockerfile() if one.name in ("ENV", "RUN", "COPY", "CMD")]
        assert [one for one in words if SECRET.search(one.words)] == []

    def test_its_settings_are_known_and_no_index_is_cached(self) -> None:
        [settings] = [settings_of(one) for one in stages()[1] if one.name == "ENV"]
        assert set(settings) <= known_variables()
        assert settings[FOLDER_VARIABLE] == "no"

    def test_what_it_runs_by_default_is_a_command(self) -> None:
        [entry] = [words_of(one) for one in stages()[1] if one.name == "ENTRYPOINT"]
        [words] = [words_of(one) for one in stages()[1] if one.name == "CMD"]
        assert entry == ["hybridagi-steps"]
        assert parsed(words)["host"] == "0.0.0.0"  # noqa: S104 - of a container


def words_of(instruction: Instruction) -> list[str]:
    """Return the words of an instruction in its JSON form."""
    return yaml.safe_load(instruction.words)


def test_the_program_is_one_that_can_be_served() -> None:
    code = """if True:
        import hybridagi_steps as hs
        from hybridagi_steps.server.program_loading import load_runner
        load_runner("program:assistant", hs.StepMemory(":memory:", embedder="hashing"))"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "STEPS_MODEL": "openai/none"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=DEPLOY, env=environment)

"""Serve the CuTe DSL from planned programs: ``cute.compile`` and direct calls of ``@cute.jit`` functions.

A call that is planned returns, or runs, what was built: nothing is traced and nothing is lowered. What a function
does in Python while it is traced does not happen then. A call that is not planned goes on to the DSL, where a guard
refuses it. Served are ``cute.compile`` in all its forms and functions that were decorated since the DSL was imported
under this server. nvidia-cutlass-dsl 4.8.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from planfreeze import errors
from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.watching import WatchedCaptures
from planfreeze.hooks import hook_method
from planfreeze.recorded.cute_calls import BoundCall, bind_call, describe_call, functions_of, is_tracing
from planfreeze.recorded.cute_differences import list_differences
from planfreeze.recorded.cute_function import CuteFunctionPayload, cute_function, function_modules
from planfreeze.recorded.values import unwrap
from planfreeze.resolve import ResolvedProgram
from planfreeze.serving.cute_objects import check_host_objects, load_function, run_function
from planfreeze.serving.misses import ADVICE
from planfreeze.serving.programs import ServedPlan, Server, note_served
from planfreeze.sources import Sources, read_sources

__all__ = ["CuteServer", "server"]


Asked = tuple[BoundCall, CuteFunctionPayload] | None


class CuteServer:
    """Planned functions by payload.

    Parameters
    ----------
    served : ServedPlan
        The plan; its programs that are no recorded CuTe DSL functions are left alone.
    """

    def __init__(self, served: ServedPlan) -> None:
        self.served = served
        self.programs = {p.payload.digest: p for p in served.programs if isinstance(p.payload, CuteFunctionPayload)}
        families = (family for family in served.plan.families if family.reference == cute_function.reference)
        self.texts = {name: digest for family in families for name, digest in family.sources.modules}
        self.text = KeyedText(Sources(tuple(sorted(self.texts.items()))))
        self.captures = WatchedCaptures()
        self.changed: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.loaded: dict[str, Any] = {}
        self.noted: set[str] = set()
        self.lock = threading.RLock()
        self.is_checked = False

    def surround_compile(self, module: ModuleType, original: Any) -> Any:
        """Put the look-up around ``cute.compile``."""

        @functools.wraps(original)
        def compile_or_serve(compiler: Any, *arguments: Any, **options: Any) -> Any:
            return self.serve(
                lambda: ask_compile(module, compiler, arguments, dict(options)),
                load_function,
                lambda: original(compiler, *arguments, **options),
            )

        return compile_or_serve

    def surround_decorator(self, original: Any) -> Any:
        """Put the look-up around every function that is decorated from now on."""

        @functools.wraps(original)
        def jit_runner(dsl: Any, executor: str, location: Any, *arguments: Any, **options: Any) -> Any:
            made = original(dsl, executor, location, *arguments, **options)
            if executor != "_func":
                return made
            if len(arguments) == 1 and callable(arguments[0]):
                return self.surround_function(made)
            return lambda function: self.surround_function(made(function))

        return jit_runner

    def surround_function(self, function: Any) -> Any:
        """Put the look-up around a decorated function."""
        body = unwrap(function)

        @functools.wraps(function)
        def call_or_serve(*arguments: Any, **options: Any) -> Any:
            if is_tracing():
                return function(*arguments, **options)
            return self.serve(
                lambda: ask_call(body, arguments, options),
                self.run_once_loaded,
                lambda: function(*arguments, **options),
            )

        return call_or_serve

    def serve(self, ask: Callable[[], Asked], give: Callable[..., Any], miss: Callable[[], Any]) -> Any:
        """Give what is planned for a call, else go on to the DSL and explain its guard's refusal."""
        asked: CuteFunctionPayload | errors.Unrecordable | errors.UnkeyedCapture | None = None
        try:
            found = ask()
        except errors.Unrecordable as error:
            found, asked = None, error
        if found is not None:
            call, payload = found
            program, asked = self.programs.get(payload.digest), payload
            if program is not None and not self.changed_modules(payload):
                asked = self.find_change(call, payload)
            if program is not None and asked is None:
                self.admit(program, call.body._dsl_object.envar.arch)
                return give(program, call)
        try:
            return miss()
        except errors.CompilationForbidden as error:
            raise errors.CompilationForbidden(
                error.attempt, f"{error.explanation} {self.explain(asked)}".strip()
            ) from error

    def changed_modules(self, payload: CuteFunctionPayload) -> tuple[str, ...]:
        """Return the modules of a planned function whose text is not the one that it was built from."""
        roots = function_modules(payload)
        changed = self.changed.get(roots)
        if changed is None:
            try:
                read = read_sources(roots).modules
            except (errors.SourceUnreadable, errors.UnparsableSource) as error:
                read = ((error.module, ""),)
            changed = tuple(name for name, digest in read if self.texts.get(name) != digest)
            self.changed[roots] = changed
        return changed

    def find_change(self, call: BoundCall, payload: CuteFunctionPayload) -> errors.UnkeyedCapture | None:
        """Return what a function reaches that is not what its text says, if anything is."""
        try:
            self.captures.check(payload.digest, payload.function, functions_of(call), lambda: self.text)
        except errors.UnkeyedCapture as error:
            return error
        except errors.SourceChanged as error:
            return errors.UnkeyedCapture(payload.function, error.module, "its text has changed since it was looked at")
        return None

    def explain(self, asked: CuteFunctionPayload | errors.Unrecordable | errors.UnkeyedCapture | None) -> str:
        """Say what the plan has instead: the nearest planned call of the function, with what differs."""
        plan = self.served.plan.name
        if asked is None:
            return ""
        if isinstance(asked, errors.Unrecordable):
            return f"No plan can hold it: {asked.reason}. Run: the call before the guard is armed"
        if isinstance(asked, errors.UnkeyedCapture):
            return f"{plan} holds {asked.kernel} as its text is, which uses {asked.name}: {asked.reason}. {ADVICE}"
        payloads = [program.payload for program in self.programs.values()]
        same = [p for p in payloads if isinstance(p, CuteFunctionPayload) and p.function == asked.function]
        if asked.digest in self.programs:
            changed = ", ".join(self.changed_modules(asked))
            return f"{plan} holds {asked.function} as it was: the text of {changed} has changed since. {ADVICE}"
        if not same:
            return f"{plan} holds no program of {asked.function}. {ADVICE}"
        differences = min((list_differences(payload, asked) for payload in same), key=len)
        return f"{plan} holds {asked.function} otherwise; planned -> asked: {'; '.join(differences)}. {ADVICE}"

    def admit(self, program: ResolvedProgram, arch: str) -> None:
        """Check once that this process can run all that is planned, and note the first use of a program.

        Raises
        ------
        HostObjectUnusable
            Names the program and what is missing or of another version.
        """
        if program.payload.digest in self.noted:
            return
        with self.lock:
            if not self.is_checked:
                check_host_objects(self.programs.values(), arch)
                self.is_checked = True
            note_served(self.served, program)
            self.noted.add(program.payload.digest)

    def run_once_loaded(self, program: ResolvedProgram, call: BoundCall) -> None:
        """Run a function that is called directly, loaded at its first call."""
        digest = program.payload.digest
        function = self.loaded.get(digest)
        if function is None:
            with self.lock:
                function = self.loaded.get(digest) or self.loaded.setdefault(digest, load_function(program, call))
        run_function(function, program, call)


# Hooks in two modules of the DSL share what the plan has for it.
here: CuteServer | None = None


def install(module: ModuleType, served: Callable[[], ServedPlan]) -> None:
    """Hook one of the DSL's modules."""
    global here
    if here is None:
        here = CuteServer(served())
    if module.__name__ == "cutlass.base_dsl.dsl":
        hook_method(module.BaseDSL, "jit_runner", here.surround_decorator)
        return
    # Not _compile: a guard puts its gate there, and what is served must not reach it.
    hook_method(module.CompileCallable, "__call__", functools.partial(here.surround_compile, module))


def ask_compile(module: ModuleType, compiler: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Asked:
    """Return what ``cute.compile(function, ...)`` asks for; None for a call that the DSL refuses itself.

    Raises
    ------
    Unrecordable
        It is a call that cannot be planned.
    """
    function = options.pop("func") if not arguments and "func" in options else (arguments or (None,))[0]
    rest = arguments[1:]
    if inspect.ismethod(function):
        rest = (function.__self__, *rest)
    elif not inspect.isfunction(function):
        rest, function = (function, *rest), getattr(type(function), "__call__", None)  # noqa: B004 - it is wanted
    body = unwrap(function)
    if not initialize(body):
        return None
    hooks, is_experimental = options.pop("trace_finalize_hooks", None), options.pop("is_experimental", False)
    if hooks or is_experimental:
        raise errors.Unrecordable(
            body.__qualname__, "it is compiled with hooks on its trace, or by the experimental DSL"
        )
    stated, chosen = options.pop("options", None), compiler._compile_options
    if isinstance(stated, str) and stated:
        chosen = module._parse_compile_options_from_str(stated)
        for selector in (module.FrontendNext, module.DisableCuteExtCompile):
            if compiler._compile_options.options[selector].value:
                chosen.options[selector].value = True
    call = bind_call(body, rest, options)
    return call, describe_call(call, chosen)


def ask_call(body: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Asked:
    """Return what a direct call asks for.

    Raises
    ------
    Unrecordable
        It is a call that cannot be planned.
    """
    if not initialize(body):
        return None
    call = bind_call(body, arguments, options)
    return call, describe_call(call, default_options())


@functools.cache
def default_options() -> Any:
    """Return the DSL's options of a direct call."""
    import cutlass.base_dsl.compiler as module

    return module.CompileOptions()


def initialize(body: Any) -> bool:
    """Make a function's DSL object, as its first call would; False for what is no ``@cute.jit`` function."""
    import cutlass.base_dsl.dsl as dsl

    dsl.BaseDSL._lazy_initialize_dsl(body)
    return hasattr(body, "_dsl_object") and getattr(body, "_decorator_kind", "jit") != "kernel"


server = Server(modules=("cutlass.base_dsl.compiler", "cutlass.base_dsl.dsl"), install=install)

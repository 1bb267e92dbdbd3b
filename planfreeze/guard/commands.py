"""Command lines: whether a process that is about to start is a compiler, or a shell that starts one.

A compiler is known by its file name, with a target's prefix and a version's suffix (``x86_64-linux-gnu-gcc-12``),
of the command as given, of the file the search path finds for it, and of the file that one links to. Shell lines
are read as far as words and separators go; words such as ``env`` and ``ccache`` are looked behind. Build drivers
(ninja, make, cmake) count as compilers: what they start themselves no process above them sees.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence

__all__ = ["Command", "find_compiler"]

Command = tuple[str, tuple[str, ...]]

COMPILERS = (
    # NVIDIA's
    ("nvcc", "cicc", "cudafe", "cudafe++", "ptxas", "fatbinary", "nvlink", "tileiras", "nvc", "nvc++", "nvfortran"),
    # the GNU and LLVM compilers and the programs their drivers start
    ("gcc", "g++", "cc", "c++", "c89", "c99", "gfortran", "cc1", "cc1plus", "lto1", "collect2", "lto-wrapper"),
    (
        "clang",
        "clang++",
        "clang-cl",
        "llc",
        "flang",
        "tcc",
        "zig",
        "as",
        "ld",
        "ld.bfd",
        "ld.gold",
        "ld.lld",
        "ld.mold",
    ),
    ("lld", "mold"),
    # other vendors'
    ("icx", "icpx", "icc", "icpc", "dpcpp", "hipcc", "amdclang", "amdclang++"),
    # build drivers
    ("ninja", "ninja-build", "make", "gmake", "cmake"),
)
# Patterns are compiled when the first process is started, not whenever a guard is imported.
NAME = (
    r"(?:(?:x86_64|i\d86|aarch64|arm\w*|powerpc\w*|riscv\w*|s390x|loongarch\w*|nvptx\w*|amdgcn)-(?:\w+-)*)?"
    rf"(?:{'|'.join(re.escape(name) for names in COMPILERS for name in names)})"
    # Triton's second assembler is ptxas-blackwell.
    r"(?:-?\d[\d.]*|-blackwell)?"
)
PYTHON = r"(?:python|pypy)[\d.]*"
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
# Words in front of a command, and those of their options that take a word of their own.
WRAPPERS = {
    **dict.fromkeys(("ccache", "sccache", "distcc", "icecc", "nohup", "setsid", "command", "builtin", "eval"), ""),
    **dict.fromkeys(("!", "{", "if", "then", "elif", "else", "while", "until", "do"), ""),
    **{"env": "uSC", "exec": "a", "nice": "n", "ionice": "cnp", "time": "fo", "stdbuf": "ioe", "timeout": "sk"},
    **{"sudo": "ugCh", "xargs": "aEIdLnPs", "taskset": "", "numactl": "CNmip", "chroot": "", "strace": "oeps"},
    **{"busybox": "", "flock": "wE", "doas": "uC", "chrt": "TPD"},
}
# Wrappers with one plain word of their own before the command.
OPERANDS = frozenset({"timeout", "taskset", "chroot", "flock", "chrt"})
ASSIGNMENT = r"[A-Za-z_]\w*\+?="
REDIRECTION = r"\d*[<>]"
SUBSTITUTION = r"\$\(([^()]*)\)|`([^`]*)`"
# Asked for one of these a compiler prints and ends, whatever else stands there; for the lone ones, if nothing does.
QUERIES = frozenset(
    {
        *("--version", "-V", "--help", "-help", "--target-help", "-###", "-dumpversion", "-dumpmachine", "-dumpspecs"),
        *("-dumpfullversion", "--list-gpu-arch", "--list-gpu-code", "-arch-ls", "-code-ls"),
    }
)
LONE_QUERIES = (("-v",), ("-h",))
# Builds, and says what it does, when asked for -v.
VERBOSE_BUILDERS = frozenset({"ninja", "ninja-build"})
QUERY_PREFIXES = ("-print-", "--print-", "--help=")
DEPTH = 8


def find_compiler(executable: str, arguments: Sequence[str], path: str | None = None) -> Command | None:
    """Return the compiler that a command starts, with its arguments, or None if it starts none that is known.

    Parameters
    ----------
    executable : str
        File to execute, or a name to search for.
    arguments : sequence of str
        The command's words, its name included.
    path : str, optional
        Search path; None takes that of the process.
    """
    return next(find_compilers(executable, tuple(arguments[1:]), path, DEPTH), None)


def find_compilers(executable: str, arguments: tuple[str, ...], path: str | None, depth: int) -> Iterator[Command]:
    """Yield the compilers in a command, through shells, wrappers and interpreters."""
    if depth == 0:
        return
    names = names_of(executable, path)
    if any(re.fullmatch(NAME, name) for name in names):
        if not is_query(names, arguments):
            yield executable, arguments
    elif SHELLS.intersection(names):
        yield from read_line(shell_line(arguments), path, depth - 1)
    elif wrappers := [name for name in names if name in WRAPPERS]:
        yield from read_words(skip_wrapper(wrappers[0], arguments), path, depth - 1)
    elif any(re.fullmatch(PYTHON, name) for name in names):
        yield from read_python(arguments, path, depth - 1)


def names_of(executable: str, path: str | None) -> tuple[str, ...]:
    """Return the file names a command goes by: as given, as found on the search path, as linked to."""
    found = shutil.which(executable, path=path) or executable
    return tuple(name.rpartition("/")[2] for name in (executable, found, os.path.realpath(found)))


def is_query(names: tuple[str, ...], arguments: tuple[str, ...]) -> bool:
    """Tell whether a compiler is only asked for its version, its paths or its options."""
    if arguments == ("-v",) and not VERBOSE_BUILDERS.isdisjoint(names):
        return False
    return (
        arguments in LONE_QUERIES
        or any(argument in QUERIES or argument.startswith(QUERY_PREFIXES) for argument in arguments)
        or is_library_search(arguments)
    )


def is_library_search(arguments: tuple[str, ...]) -> bool:
    """Tell whether a linker is asked where a library is, as by ``ctypes.util.find_library``: traced, without input."""
    words = iter(arguments)
    for word in words:
        if word in ("-o", "-L"):
            next(words, None)
        elif not word.startswith("-"):
            return False
    return not {"-Wl,-t", "-t"}.isdisjoint(arguments)


def shell_line(arguments: tuple[str, ...]) -> str:
    """Return the line a shell is given by ``-c``, alone or among other letters (``-euo pipefail -c``), else nothing."""
    words = iter(arguments)
    for word in words:
        if word.startswith("--"):
            continue
        if not word.startswith(("-", "+")):
            return ""
        if "c" in word:
            return next((word for word in words if not word.startswith(("-", "+"))), "")
        if word[-1] in "oO":
            next(words, None)
    return ""


def read_line(line: str, path: str | None, depth: int) -> Iterator[Command]:
    """Yield the compilers of a shell line: of each simple command, and of substitutions inside words."""
    for words in split_line(line):
        yield from read_words(words, path, depth)
        for word in words:
            for inner in re.findall(SUBSTITUTION, word):
                yield from read_line(" ".join(inner), path, depth - 1)


def split_line(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each simple command of a shell line."""
    lexer = shlex.shlex(line.replace("\n", " ; "), posix=True, punctuation_chars=";&|()")
    lexer.commenters, lexer.whitespace_split = "", True
    words: list[str] = []
    try:
        for word in lexer:
            if word.strip(";&|()"):
                words.append(word)
            else:
                yield tuple(words)
                words = []
    except ValueError:
        # An open quote, as in a here-document: the rest is read as plain words.
        words += re.split(r"[\s;&|()\"']+", line)
    yield tuple(words)


def read_words(words: tuple[str, ...], path: str | None, depth: int) -> Iterator[Command]:
    """Yield the compilers of one simple command; assignments and redirections may stand before its name."""
    if depth == 0:
        return
    while words and (re.match(ASSIGNMENT, words[0]) or re.match(REDIRECTION, words[0])):
        words = words[2:] if words[0].endswith((">", "<")) else words[1:]
    if not words:
        return
    name = os.path.expandvars(words[0])
    if name != words[0]:
        # A variable such as $CC may hold several words.
        yield from read_words((*name.split(), *words[1:]), path, depth - 1)
    elif any(character.isspace() for character in name):
        # The operand of eval.
        yield from read_line(name, path, depth - 1)
    else:
        yield from find_compilers(name, words[1:], path, depth)


def skip_wrapper(name: str, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words behind a wrapper's own options and operand."""
    has_operand = name in OPERANDS
    while arguments:
        word = arguments[0]
        if name == "env" and word in ("-S", "--split-string"):
            return (*shlex.split(arguments[1]), *arguments[2:]) if len(arguments) > 1 else ()
        if word == "--":
            return arguments[1:]
        if word.startswith("-") and len(word) > 1:
            takes_word = not word.startswith("--") and len(word) == 2 and word[1] in WRAPPERS[name]
            arguments = arguments[2:] if takes_word else arguments[1:]
        elif has_operand:
            has_operand, arguments = False, arguments[1:]
        else:
            break
    return arguments


def read_python(arguments: tuple[str, ...], path: str | None, depth: int) -> Iterator[Command]:
    """Yield a build driver that a Python interpreter is told to run: ``python -m ninja``, ``python /bin/ninja``."""
    words = iter(arguments)
    for word in words:
        if word in ("-c", "-"):
            return
        if word == "-m" or not word.startswith("-"):
            name = next(words, "") if word == "-m" else word
            yield from find_compilers(name, tuple(words), path, depth)
            return

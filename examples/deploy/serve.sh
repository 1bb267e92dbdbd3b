#!/bin/sh
# Start a server frozen: sh serve.sh COMMAND...
#
# PLANFREEZE_STORE names a store or a pack, PLANFREEZE_PLAN the plans in it, each pinned: NAME@sha256:ROOT.
# What a supervisor should do about the exit status:
#
#   2           wrong use: the deployment is wrong, do not start again
#   3, 4        programs are missing, damaged or untrusted: ship the pack again, do not start again
#   5           the server reached a compiler: keep the report, record and build what is missing
#   6           this machine lacks a device, a driver or an extra: start elsewhere
#   1           the doctor found another problem, said on standard error; or the server's own
#   any other   the server's own, 128 + N where signal N ended it: start again
set -u

fail() {
    status=$1
    shift
    printf 'serve.sh: %s\n' "$*" >&2
    exit "$status"
}

[ $# -gt 0 ] || fail 2 'give the command that serves: sh serve.sh python server.py'
[ -n "${PLANFREEZE_STORE:-}" ] || fail 2 'PLANFREEZE_STORE is not set: give the store or the pack'
plans=$(printf '%s' "${PLANFREEZE_PLAN:-}" | tr ',' ' ')
[ -n "$plans" ] || fail 2 'PLANFREEZE_PLAN is not set: give NAME@sha256:ROOT'
for plan in $plans; do
    case $plan in
        *@sha256:*) ;;
        *) fail 2 "$plan is not pinned: give NAME@sha256:ROOT" ;;
    esac
    # Every byte of every program, with compiling forbidden. Results of checks are no output of the server.
    planfreeze replay --plan "$plan" >&2 || fail $? "$plan does not resolve from $PLANFREEZE_STORE"
done
planfreeze doctor >&2 || fail $? 'frozen serving would not work here'
exec planfreeze run --report "${SERVE_REPORT:-/tmp/attempts.json}" -- "$@"

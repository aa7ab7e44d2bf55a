# shellcheck shell=sh
# Sourced first by every script here: --help prints the comment at its head, and `refuse` does so for what it does
# not understand.
usage=$(sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0")
case ${1:-} in
-h | --help)
	printf '%s\n' "$usage"
	exit 0
	;;
esac
refuse() {
	printf '%s: I do not know %s.\n\n%s\n' "$(basename "$0")" "$*" "$usage" >&2
	exit 2
}

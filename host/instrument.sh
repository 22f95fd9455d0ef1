#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# cargo's RUSTC_WRAPPER. It adds the options in INSTRUMENT for the driver and the programs that link
# it. The other crates are neither counted nor slowed down.

# Each word of INSTRUMENT is an option.
# shellcheck disable=SC2086
case " $* " in
*" --crate-name driver "* | *" --crate-name lives "* | *" --crate-name life "*) exec "$@" $INSTRUMENT ;;
*) exec "$@" ;;
esac

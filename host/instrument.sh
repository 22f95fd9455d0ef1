#!/bin/sh
# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
#
# Runs rustc for cargo, as its RUSTC_WRAPPER, with the options in INSTRUMENT for the driver and the program that has it. What is around the
# driver is neither counted nor slowed down.

case " $* " in
*" --crate-name driver "* | *" --crate-name lives "* | *" --crate-name life "*) exec "$@" $INSTRUMENT ;;
*) exec "$@" ;;
esac

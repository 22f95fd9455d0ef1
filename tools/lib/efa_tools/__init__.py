# SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
"""Builds efa-rs and the emulated device in a Debian root of their own, and boots guests that run them."""

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

// What private fields refuse. Each line with an error has its code.

use crate::{
    rdma::{
        SendWrLayout,
        WrToken, //
    },
    sys::mmio::Pages,
};

fn completes_any_id(token: WrToken) -> WrToken {
    WrToken { wr_id: 8, ..token } //~ E0451
}

fn reads_anywhere() -> SendWrLayout {
    SendWrLayout {
        ah: 1 << 20, //~ E0451
        ..SendWrLayout::UD
    }
}

fn maps_more_than_there_is(pages: Pages<'_>) -> Pages<'_> {
    Pages {
        length: 1 << 20, //~ E0451
        ..pages
    }
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

// Code that types and private fields reject. Each line with an error has its code.

use kernel::{
    device::{
        Bound,
        Device, //
    },
    irq::ThreadedIrqReturn,
    prelude::*, //
};

use crate::{
    rdma::{
        SendData,
        SendOp,
        SendWrLayout,
        UapiDefinitions,
        WcPlace,
        WorkCompletion,
        WrToken, //
    },
    sys::{
        attach::{
            Attached,
            Attachment,
            Binding, //
        },
        irq,
        mmio::{
            Pages,
            Slots, //
        },
        spsc, //
    },
};

struct Borrows<'q>(&'q u32);

#[vtable]
impl irq::Handler for Borrows<'_> {
    fn handle(&self) -> ThreadedIrqReturn {
        ThreadedIrqReturn::Handled
    }
}

fn handles_interrupts_with_a_queue_that_is_freed<'bound>(
    binding: Binding<'bound>,
    vectors: &irq::Vectors<'bound>,
) -> Result<irq::Registration<'bound>> {
    let queue = 0;
    let handler = Borrows(&queue);
    irq::Registration::new(binding, vectors, 0, fmt!("queue"), 0, handler) //~ E0515
}

fn completes_a_work_request_twice(
    token: WrToken,
    first: WcPlace<'_, '_>,
    second: WcPlace<'_, '_>,
    completion: &WorkCompletion<'_>,
) {
    first.complete(token, completion);
    second.complete(token, completion); //~ E0382
}

fn copies_a_token(token: &WrToken) -> WrToken {
    *token //~ E0507
}

fn fills_a_place_twice(
    first: WrToken,
    second: WrToken,
    place: WcPlace<'_, '_>,
    completion: &WorkCompletion<'_>,
) {
    place.complete(first, completion);
    place.complete(second, completion); //~ E0382
}

fn writes_where_a_send_goes<'w>(op: SendOp<'w, (), ()>) -> u64 {
    match op {
        SendOp::Send(_, remote) => remote.addr, //~ E0023
        _ => 0,
    }
}

fn reads_bus_addresses(data: SendData<'_>, buffer: &mut [u8]) {
    if let SendData::Sges(sges) = data {
        sges.copy_to(buffer); //~ E0599
    }
}

fn attaches_what_lives_shorter(host: Attachment<'_, 'static>) -> Result {
    let local = 0u8;
    let borrowed = &local; //~ E0597
    Attached::new(host, Ok::<&u8, Error>(borrowed)).map(drop)
}

fn reads_what_is_not_shared() -> UapiDefinitions<()> {
    crate::ffi::EFA_UAPI_DEFINITIONS //~ E0308
}

fn has_two_producers(count: u32) -> Result {
    let (producer, _consumer) = spsc::slots::<u8, ()>(count, ())?;
    let _other = producer.clone(); //~ E0599
    Ok(())
}

fn completes_any_id(token: &mut WrToken) {
    token.wr_id = 8; //~ E0616
}

fn reads_anywhere() -> SendWrLayout {
    let mut layout = SendWrLayout::UD;
    layout.ah = 1 << 20; //~ E0616
    layout
}

fn writes_where_others_write(slots: &Slots<'_>) {
    slots.slot(0); //~ E0596
}

fn attaches_to_what_outlives_the_module(dev: &Device<Bound>) {
    let _ = Attachment::new(dev); //~ E0624
}

fn maps_more_than_there_is(pages: &mut Pages<'_>) {
    pages.length = 1 << 20; //~ E0616
}

// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The calls that change a device.

use std::{
    fmt::{self, Display, Formatter},
    time::Duration,
};

use efa_hw::{io::CompStatus, regs::Register};
use serde::{Deserialize, Serialize};

use crate::{
    Arrival, Death, DmaError, Overrides, QpId, Rule, TransportEvent, code, recording::nanos,
};

/// A call of a [`Device`](crate::Device), with the names of its methods. Times are in ns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "they are the parameters of the methods")]
pub enum Call {
    WriteRegister {
        now: u64,
        offset: u64,
        value: u32,
    },
    WriteDoorbell {
        offset: u64,
        value: u32,
    },
    Run {
        now: u64,
    },
    Fetch,
    Complete {
        qp: QpId,
        request: u64,
        #[serde(with = "code")]
        status: CompStatus,
    },
    Gather {
        qp: QpId,
        request: u64,
        offset: u32,
        length: u32,
    },
    Scatter {
        qp: QpId,
        request: u64,
        offset: u32,
        length: u32,
    },
    GatherForPeer {
        qp: QpId,
        memory: (u32, u64),
        length: u32,
    },
    Deliver(Arrival),
    Delivered {
        delivery: u64,
        written: Result<(), DmaError>,
    },
    Cancel {
        delivery: u64,
    },
    ReadServed {
        qp: QpId,
    },
    Count(TransportEvent),
    PostEvent {
        now: u64,
        group: u16,
        syndrome: u16,
    },
    PostEventLate {
        group: u16,
        syndrome: u16,
        after_commands: u64,
    },
    PostCompletionEvent {
        eqn: Option<u16>,
        cqn: u16,
    },
    Storm {
        group: u16,
        syndrome: u16,
        count: u64,
    },
    StormOfCompletionEvents {
        eqn: Option<u16>,
        cqn: u16,
        count: u64,
    },
    Inject(#[serde(with = "json")] Box<Rule>),
    Release {
        name: String,
        count: Option<u64>,
    },
    Set(#[serde(with = "json")] Box<Overrides>),
    Clear,
    FailQp {
        qp: u16,
    },
    Die {
        now: u64,
        #[serde(with = "json")]
        death: Death,
    },
    Unplug,
    Plug,
    Reset,
    PowerOn,
}

impl Call {
    /// The time that the device is told.
    pub fn now(&self) -> Option<Duration> {
        match self {
            Self::WriteRegister { now, .. }
            | Self::Run { now }
            | Self::PostEvent { now, .. }
            | Self::Die { now, .. } => Some(Duration::from_nanos(*now)),
            _ => None,
        }
    }

    pub(crate) fn write_register(now: Duration, offset: u64, value: u32) -> Self {
        let now = nanos(now);
        Self::WriteRegister { now, offset, value }
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::WriteRegister { offset, value, .. } => {
                let register = u16::try_from(*offset)
                    .ok()
                    .and_then(|offset| Register::try_from(offset).ok());
                match register {
                    Some(register) => write!(f, "write of {} = {value:#x}", register.name()),
                    None => write!(f, "write of register {offset:#x} = {value:#x}"),
                }
            }
            Self::WriteDoorbell { offset, value } => {
                write!(f, "write of doorbell {offset:#x} = {value:#x}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// What has names and defaults is kept as JSON, which says what it is.
mod json {
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{DeserializeOwned, Error as _},
        ser::Error as _,
    };

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let json = serde_json::to_string(value).map_err(S::Error::custom)?;
        serializer.serialize_str(&json)
    }

    pub(super) fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        let json = String::deserialize(deserializer)?;
        serde_json::from_str(&json).map_err(D::Error::custom)
    }
}

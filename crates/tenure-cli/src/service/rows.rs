//! Instances as `--json` and tables show them.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tenure::service::Instance;
use tenure_core::id::InstanceId;
use tenure_core::record::InstanceValue;

use crate::lease_remaining::in_seconds;
use crate::node::format_time;

/// One instance.
#[derive(Serialize)]
pub(super) struct InstanceRow {
    id: String,
    address: Option<String>,
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    metadata: serde_json::Value,
    /// The value in base64, if it is neither a record nor text.
    #[serde(skip_serializing_if = "Option::is_none")]
    value_b64: Option<String>,
    token: String,
    started: Option<String>,
    lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_remaining_seconds: Option<f64>,
}

impl InstanceRow {
    pub(super) fn new(instance: &Instance) -> InstanceRow {
        let (metadata, started, value_b64) = match &instance.record {
            InstanceValue::Record(record) => (record.metadata.clone(), format_time(record.started), None),
            InstanceValue::Plain(value) => {
                let is_text = std::str::from_utf8(value).is_ok();
                (serde_json::Value::Null, None, (!is_text).then(|| STANDARD.encode(value)))
            }
        };
        InstanceRow {
            id: instance.id.to_string(),
            address: instance.record.address().map(str::to_owned),
            metadata,
            value_b64,
            token: instance.token.to_string(),
            started,
            lease: instance.lease.map(|lease| lease.to_string()),
            lease_remaining_seconds: None,
        }
    }

    pub(super) fn with_remaining(mut self, remaining: Option<Duration>) -> InstanceRow {
        self.lease_remaining_seconds = remaining.map(|remaining| remaining.as_secs_f64());
        self
    }

    /// The address, or the value as a table shows it.
    pub(super) fn location(&self) -> String {
        match (&self.address, &self.value_b64) {
            (Some(address), _) => address.clone(),
            (None, Some(value)) => format!("base64:{value}"),
            (None, None) => "-".to_owned(),
        }
    }

    pub(super) fn into_row(self) -> Vec<String> {
        let location = self.location();
        let metadata = if self.metadata.is_null() { "-".to_owned() } else { self.metadata.to_string() };
        let left = in_seconds(self.lease_remaining_seconds.map(Duration::from_secs_f64));
        vec![self.id, location, metadata, left, self.token, self.started.unwrap_or_else(|| "-".to_owned())]
    }
}

/// An instance with an unreadable record.
#[derive(Serialize)]
pub(super) struct UnreadableInstance {
    id: String,
    why: String,
}

impl UnreadableInstance {
    pub(super) fn new(aside: &tenure::presence::UnreadableKey<InstanceId>) -> UnreadableInstance {
        UnreadableInstance { id: aside.id.to_string(), why: aside.why.clone() }
    }
}

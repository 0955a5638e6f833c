//! `tenure service`: lists and watches the instances of services.
//!
//! An instance is a key under `services/<name>/<instance>`. A program registers it with the library.
//! `tenure register web/a=10.0.0.1:80` registers a plain value, which is shown as the address.

mod rows;
mod watch;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde::Serialize;
use tenure::service::Services;
use tenure::store::Store;
use tenure_core::id::{Namespace, ServiceName};

use self::rows::{InstanceRow, UnreadableInstance};
use crate::failure::{Code, Failure};
use crate::lease_remaining::remaining;
use crate::output::Output;

/// The `schema` of JSON output about services.
const SCHEMA: &str = "tenure.service/v1";

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum ServiceCommand {
    /// List the services with the number of their instances.
    #[command(alias = "list")]
    Ls,
    /// List the instances of a service, all at one revision; exit 3 if there is none.
    #[command(aliases = ["get", "describe"])]
    Show(ServiceNameArg),
    /// Print the instances, then every change, one per line.
    Watch(watch::ServiceWatchArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ServiceNameArg {
    /// The service's name.
    #[arg(value_name = "NAME", value_parser = ServiceName::parse)]
    name: ServiceName,
}

/// Runs a verb on an open store.
pub(crate) async fn run(
    command: &ServiceCommand,
    store: &Store,
    namespace: &Namespace,
    output: &Output,
) -> Result<(), Failure> {
    let services = Services::new(store.clone(), namespace);
    match command {
        ServiceCommand::Ls => ls(&services, output).await,
        ServiceCommand::Show(args) => show(&args.name, &services, store, output).await,
        ServiceCommand::Watch(args) => watch::watch(args, &services, output).await,
    }
}

async fn ls(services: &Services, output: &Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ServiceListReport {
        schema: &'static str,
        services: Vec<ServiceRow>,
        revision: String,
    }
    #[derive(Serialize)]
    struct ServiceRow {
        name: String,
        instances: u64,
    }
    let everything = services.all_instances().await?;
    let mut counts: BTreeMap<&ServiceName, u64> = BTreeMap::new();
    for instance in everything.members() {
        *counts.entry(&instance.id.0).or_default() += 1;
    }
    if output.is_json {
        let services = counts
            .into_iter()
            .map(|(name, instances)| ServiceRow { name: name.to_string(), instances })
            .collect();
        return output.object(&ServiceListReport {
            schema: SCHEMA,
            services,
            revision: everything.revision.to_string(),
        });
    }
    for aside in everything.set_aside() {
        let (name, instance) = &aside.id;
        output.note(&format!(
            "instance {instance} of {name} is not listed: its record cannot be read: {}",
            aside.why
        ));
    }
    let rows: Vec<Vec<String>> =
        counts.into_iter().map(|(name, instances)| vec![name.to_string(), instances.to_string()]).collect();
    output.table(&["service", "instances"], &rows)
}

async fn show(
    name: &ServiceName,
    services: &Services,
    store: &Store,
    output: &Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct ServiceShowReport {
        schema: &'static str,
        name: String,
        instances: Vec<InstanceRow>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        set_aside: Vec<UnreadableInstance>,
        revision: String,
    }
    let list = services.instances(name).await?;
    if list.is_empty() && list.set_aside().is_empty() {
        return Err(Failure::new(Code::NotFound, format!("the service {name} has no instances: none is registered now"))
            .hint(format!(
                "list the services with `tenure service ls`, or register an instance with `tenure register {name}/1=ADDRESS`"
            )));
    }
    let left = remaining(store, list.members().iter().filter_map(|instance| instance.lease)).await?;
    let instances = list.members().iter().map(|instance| {
        let left = instance.lease.and_then(|lease| left.get(&lease)).copied();
        InstanceRow::new(instance).with_remaining(left)
    });
    if output.is_json {
        return output.object(&ServiceShowReport {
            schema: SCHEMA,
            name: name.to_string(),
            instances: instances.collect(),
            set_aside: list.set_aside().iter().map(UnreadableInstance::new).collect(),
            revision: list.revision.to_string(),
        });
    }
    for aside in list.set_aside() {
        output.note(&format!(
            "instance {} of {name} is not listed: its record cannot be read: {}",
            aside.id, aside.why
        ));
    }
    let rows: Vec<Vec<String>> = instances.map(InstanceRow::into_row).collect();
    output.table(&["instance", "address", "metadata", "lease s", "token", "started"], &rows)
}

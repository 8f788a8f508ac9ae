//! A device that the engine runs and the bench looks into.

use std::sync::{Arc, Mutex};

use glmc_ir::plan::{Phase, Plan};
use glmc_ir::ty::SymValues;
use glmc_runtime::RuntimeError;
use glmc_runtime::device::cuda::CudaDevice;
use glmc_runtime::device::{Device, Observer};
use glmc_runtime::load::Weights;

use crate::error::CliError;

/// A GPU's device, shared.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    device: Arc<Mutex<CudaDevice>>,
    result: Vec<f32>,
}

impl Probe {
    pub(super) fn of(device: CudaDevice) -> Probe {
        Probe { device: Arc::new(Mutex::new(device)), result: Vec::new() }
    }

    /// Looks into the device.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut CudaDevice) -> T) -> Result<T, CliError> {
        let mut device = self.device.lock().map_err(|_| CliError::internal("a device that a panic left"))?;
        Ok(look(&mut device))
    }
}

impl Device for Probe {
    fn set_poison(&mut self, on: bool) {
        if let Ok(mut d) = self.device.lock() {
            d.set_poison(on);
        }
    }

    fn run(
        &mut self,
        plan: &Plan,
        index: usize,
        weights: &[Weights],
        syms: &SymValues,
        params: &[Vec<i32>],
        see: Option<Observer<'_>>,
    ) -> Result<(), RuntimeError> {
        let gone = |_| RuntimeError::Request("a device that a panic left".into());
        let mut device = self.device.lock().map_err(gone)?;
        device.run(plan, index, weights, syms, params, see)?;
        self.result.clear();
        // A step without wanted logits leaves none.
        let phase = &plan.phases[index];
        if let Ok(logits) = device.result(plan, phase, glmc_ir::plan::param::LOGITS, syms) {
            self.result.extend_from_slice(logits);
        }
        Ok(())
    }

    fn result(&self, _: &Plan, _: &Phase, _: &str, _: &SymValues) -> Result<&[f32], RuntimeError> {
        Ok(&self.result)
    }
}

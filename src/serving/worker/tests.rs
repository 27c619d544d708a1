use std::collections::VecDeque;

use groupage_engine::{BATCHES_MAX, BatchPipeline, Executor, OutputKind, PackedBatch, SequenceOutput};

use super::*;
use crate::tests::{FakeExecutor, TestModel};

fn sequence(model: &TestModel, ids: &[u32]) -> InputSequence {
    let tokens = model.served.model().tokenizer().encode_ids(ids, false).unwrap();
    InputSequence { tokens, characters: ids.len(), kind: OutputKind::Embedding }
}

fn start(executor: impl Executor + 'static) -> WorkerHandle {
    start_with(executor, Arc::new(Metrics::new("local")))
}

fn start_with(executor: impl Executor + 'static, metrics: Arc<Metrics>) -> WorkerHandle {
    let load = || Ok::<Box<dyn Executor>, String>(Box::new(executor));
    WorkerHandle::start(load, metrics, Clock::start()).unwrap()
}

fn first_elements(results: &[SequenceResult]) -> Vec<f32> {
    let first = |result: &SequenceResult| match result.as_ref().unwrap() {
        SequenceOutput::Embedding(values) => values[0],
        other => panic!("{other:?}"),
    };
    results.iter().map(first).collect()
}

#[tokio::test]
async fn a_job_above_the_limit_of_tokens_is_executed_in_several_batches() {
    let model = TestModel::embedding();
    let executor = FakeExecutor::new(7);
    let batches = executor.batches.clone();
    let worker = start(executor);
    let sequences =
        [&[5, 6, 7][..], &[8, 9], &[5, 5, 5], &[6], &[7, 7, 7, 7]].map(|ids| sequence(&model, ids)).to_vec();
    let executed = worker.execute(sequences).await.unwrap();
    assert_eq!(
        first_elements(&executed.results),
        [18.0, 17.0, 15.0, 6.0, 28.0],
        "results are in the order of the sequences"
    );
    assert_eq!(*batches.lock().unwrap(), [2, 2, 1]);
    let too_long = worker.execute(vec![sequence(&model, &[5; 8])]).await;
    assert_eq!(
        too_long.unwrap_err(),
        ExecutionFailure::Refused(ExecuteError::TooManyTokens { tokens: 8, tokens_max: 7 })
    );
    assert!(matches!(worker.state(), WorkerState::Ready(_)), "a refused batch is no failure of the engine");
}

#[tokio::test]
async fn a_job_is_not_executed_after_its_caller_has_gone() {
    let model = TestModel::embedding();
    let (executor, gate) = FakeExecutor::new(100).gated();
    let batches = executor.batches.clone();
    let worker = start(executor);
    let first = tokio::spawn({
        let (worker, one) = (worker.clone(), vec![sequence(&model, &[5])]);
        async move { worker.execute(one).await }
    });
    gate.wait_entered().await;
    let dropped = tokio::spawn({
        let (worker, two) = (worker.clone(), vec![sequence(&model, &[6]), sequence(&model, &[7])]);
        async move { worker.execute(two).await }
    });
    while worker.jobs.capacity() == JOBS_MAX {
        tokio::task::yield_now().await;
    }
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    gate.open();
    assert_eq!(first.await.unwrap().unwrap().results.len(), 1);
    worker.execute(vec![sequence(&model, &[8])]).await.unwrap();
    assert_eq!(*batches.lock().unwrap(), [1, 1], "the two sequences of the dropped job are left out");
}

#[tokio::test]
async fn a_panic_fails_the_job_and_all_later_ones() {
    let model = TestModel::embedding();
    let worker = start(FakeExecutor::new(100).panicking_on(9));
    assert_eq!(worker.execute(vec![sequence(&model, &[5])]).await.unwrap().results.len(), 1);
    let failed = worker.execute(vec![sequence(&model, &[5]), sequence(&model, &[9])]).await;
    assert_eq!(failed.unwrap_err(), ExecutionFailure::Stopped);
    worker.failed().await;
    assert!(matches!(worker.state(), WorkerState::Failed));
    assert_eq!(worker.execute(vec![sequence(&model, &[5])]).await.unwrap_err(), ExecutionFailure::Stopped);
}

/// An executor that loses its device with a token, and has counts of one.
#[derive(Debug)]
struct LosingExecutor {
    inner: FakeExecutor,
    usage: DeviceUsage,
    lost_with: u32,
}

impl Executor for LosingExecutor {
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError> {
        if batch.ids().contains(&self.lost_with) {
            let (operation, name) = ("the copy from the device", "CUDA_ERROR_ILLEGAL_ADDRESS");
            return Err(ExecuteError::DeviceLoss { operation, name, code: 700 });
        }
        self.usage.eager += 1;
        self.usage.token_ceiling /= 2;
        self.inner.execute(batch)
    }

    fn report(&self) -> &ExecutorReport {
        self.inner.report()
    }

    fn device_usage(&self) -> Option<DeviceUsage> {
        Some(self.usage)
    }
}

#[tokio::test]
async fn the_loss_of_the_device_fails_the_worker() {
    let model = TestModel::embedding();
    let usage = DeviceUsage { token_ceiling: 100, padding_tokens: 63, ..DeviceUsage::default() };
    let executor = LosingExecutor { inner: FakeExecutor::new(100), usage, lost_with: 9 };
    let metrics = Arc::new(Metrics::new("local"));
    let worker = start_with(executor, metrics.clone());
    worker.loaded().await.unwrap();
    assert_eq!(worker.tokens_max(), Some(100));
    worker.execute(vec![sequence(&model, &[5])]).await.unwrap();
    assert_eq!(worker.tokens_max(), Some(50), "the ceiling of the device has fallen");
    let failed = worker.execute(vec![sequence(&model, &[9])]).await.unwrap_err();
    assert!(failed.is_fatal() && failed.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{failed}");
    worker.failed().await;
    assert!(matches!(worker.state(), WorkerState::Failed));
    assert_eq!(worker.execute(vec![sequence(&model, &[5])]).await.unwrap_err(), ExecutionFailure::Stopped);
    let text = metrics.render();
    for line in [
        "groupage_engine_launches_total{mode=\"eager\"} 1",
        "groupage_engine_padding_tokens_total 63",
        "groupage_engine_token_ceiling 50",
        "groupage_engine_memory_bytes{use=\"weights\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[tokio::test]
async fn an_executor_that_cannot_be_created_fails_the_worker() {
    let load = || Err::<Box<dyn Executor>, _>("no memory");
    let worker = WorkerHandle::start(load, Arc::new(Metrics::new("local")), Clock::start()).unwrap();
    worker.failed().await;
    assert_eq!(worker.tokens_max(), None);
    let model = TestModel::embedding();
    assert_eq!(worker.execute(vec![sequence(&model, &[5])]).await.unwrap_err(), ExecutionFailure::Stopped);
}

/// An executor that returns too few results.
#[derive(Debug)]
struct ShortExecutor(FakeExecutor);

impl Executor for ShortExecutor {
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError> {
        self.0.execute(batch).map(|results| results.into_iter().skip(1).collect())
    }

    fn report(&self) -> &ExecutorReport {
        self.0.report()
    }
}

#[tokio::test]
async fn a_missing_result_is_an_error_of_the_job() {
    let model = TestModel::embedding();
    let worker = start(ShortExecutor(FakeExecutor::new(100)));
    let failed = worker.execute(vec![sequence(&model, &[5]), sequence(&model, &[6])]).await;
    assert_eq!(failed.unwrap_err(), ExecutionFailure::WrongCount { results: 1, sequences: 2 });
}

/// An executor with a pipeline. Its oldest batch ends once another one is in flight, or at once if
/// none is expected.
#[derive(Debug)]
struct PipelinedExecutor {
    inner: FakeExecutor,
    in_flight: VecDeque<PackedBatch>,
    /// Number of batches that are still to be submitted beside another one.
    expected: usize,
    lost_with: Option<u32>,
}

impl Executor for PipelinedExecutor {
    fn execute(&mut self, batch: &PackedBatch) -> Result<Vec<SequenceResult>, ExecuteError> {
        assert!(self.in_flight.is_empty(), "a job of several batches is executed alone");
        self.inner.execute(batch)
    }

    fn report(&self) -> &ExecutorReport {
        self.inner.report()
    }

    fn pipeline(&mut self) -> Option<&mut dyn BatchPipeline> {
        Some(self)
    }
}

impl BatchPipeline for PipelinedExecutor {
    fn submit(&mut self, batch: PackedBatch) -> Result<(), ExecuteError> {
        assert!(self.in_flight.len() < BATCHES_MAX);
        self.expected -= self.in_flight.len().min(self.expected);
        self.in_flight.push_back(batch);
        Ok(())
    }

    fn is_ended(&mut self) -> bool {
        self.in_flight.len() == BATCHES_MAX || self.expected == 0
    }

    fn collect(&mut self) -> Result<Vec<SequenceResult>, ExecuteError> {
        let batch = self.in_flight.pop_front().unwrap();
        if self.lost_with.is_some_and(|id| batch.ids().contains(&id)) {
            let (operation, name) = ("the copy from the device", "CUDA_ERROR_ILLEGAL_ADDRESS");
            return Err(ExecuteError::DeviceLoss { operation, name, code: 700 });
        }
        self.inner.execute(&batch)
    }
}

/// The batch ends only once another one is in flight, and there is none. That a fatal failure ends
/// the worker is the subject of other tests.
#[test]
fn a_batch_that_does_not_end_within_its_time_counts_as_the_loss_of_the_device() {
    let model = TestModel::embedding();
    let (inner, in_flight) = (FakeExecutor::new(7), VecDeque::new());
    let mut executor = PipelinedExecutor { inner, in_flight, expected: 1, lost_with: None };
    let metrics = Metrics::new("local");
    let mut pipeline = JobPipeline::new(&mut executor, &metrics, Clock::start(), Duration::ZERO);
    let (jobs, mut inbox) = mpsc::channel(JOBS_MAX);
    let (reply, results) = oneshot::channel();
    jobs.try_send(ExecutionJob { sequences: vec![sequence(&model, &[5])], reply }).unwrap();
    let FinishedJob { reply, result } = pipeline.advance(&mut inbox).unwrap();
    let failure = result.as_ref().unwrap_err();
    assert_eq!(*failure, ExecutionFailure::Refused(ExecuteError::DeviceStall { time_max: Duration::ZERO }));
    assert!(failure.is_fatal() && failure.to_string().contains("within 0 s"), "{failure}");
    assert!(!reply.is_closed(), "the caller gets the failure");
    drop((jobs, results));
}

fn start_pipelined(expected: usize, lost_with: Option<u32>) -> WorkerHandle {
    start(PipelinedExecutor { inner: FakeExecutor::new(7), in_flight: VecDeque::new(), expected, lost_with })
}

/// The first batch ends only if the worker submits the second one before it waits for the first.
#[tokio::test]
async fn a_second_job_is_submitted_while_the_first_one_is_executed() {
    let model = TestModel::embedding();
    let worker = start_pipelined(1, None);
    let jobs = [&[5, 6][..], &[8]].map(|ids| worker.execute(vec![sequence(&model, ids)]));
    let [first, second] = jobs;
    let (first, second) = tokio::join!(first, second);
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!([first_elements(&first.results), first_elements(&second.results)], [[11.0], [8.0]]);
    assert!(second.began >= first.began, "the second job begins when the first one ends");
}

#[tokio::test]
async fn a_job_of_several_batches_is_executed_after_those_in_flight() {
    let model = TestModel::embedding();
    let worker = start_pipelined(0, None);
    let large = || [&[5; 6][..], &[6; 6]].map(|ids| sequence(&model, ids)).to_vec();
    let small = |id| worker.execute(vec![sequence(&model, &[id])]);
    let (a, b, c, d) = tokio::join!(small(5), worker.execute(large()), small(7), worker.execute(large()));
    let found = [a, b, c, d].map(|executed| first_elements(&executed.unwrap().results));
    assert_eq!(found, [vec![5.0], vec![30.0, 36.0], vec![7.0], vec![30.0, 36.0]]);
}

#[tokio::test]
async fn the_loss_of_the_device_fails_all_jobs_in_flight() {
    let model = TestModel::embedding();
    let worker = start_pipelined(1, Some(5));
    let job = |id| worker.execute(vec![sequence(&model, &[id])]);
    let (first, second) = tokio::join!(job(5), job(6));
    assert!(first.unwrap_err().is_fatal() && second.unwrap_err().is_fatal());
    worker.failed().await;
}

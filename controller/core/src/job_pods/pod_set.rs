//! Holds pods in the order of their UIDs. A copy takes next to no time, whatever the size.

use std::sync::Arc;

use crate::view::{Pod, Uid};

/// The most pods of a chunk. A change after a copy copies one chunk and the list of chunks, which
/// cost the same at the size of the largest Jobs.
const CHUNK_MAX: usize = if cfg!(test) { 4 } else { 256 };

/// A set of pods. Copies share the chunks that have not changed since.
#[derive(Clone, Debug, Default)]
pub struct PodSet(Chunks);

/// No chunk is empty. Most Jobs have few pods, and need no list of chunks.
#[derive(Clone, Debug, Default)]
enum Chunks {
    #[default]
    None,
    One(Arc<Chunk>),
    Many(Arc<Vec<Arc<Chunk>>>),
}

type Chunk = Vec<Arc<Pod>>;

impl PodSet {
    /// Whether it has no pod.
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Chunks::None)
    }

    /// The number of pods.
    pub fn len(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.len()).sum()
    }

    /// The pods in the order of their UIDs.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.chunks().iter().flat_map(|chunk| chunk.iter())
    }

    /// The pod of this UID.
    pub fn get(&self, uid: &Uid) -> Option<&Arc<Pod>> {
        let chunks = self.chunks();
        let chunk = chunks.get(place(chunks, uid))?;
        Some(&chunk[position(chunk, uid).ok()?])
    }

    /// Inserts a pod, and returns the one that it replaces.
    pub fn insert(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        match &mut self.0 {
            Chunks::None => {
                self.0 = Chunks::One(Arc::new(vec![pod]));
                None
            }
            Chunks::One(chunk) => {
                let (old, rest) = insert(own(chunk), pod);
                if let Some(rest) = rest {
                    let chunks = vec![Arc::clone(chunk), Arc::new(rest)];
                    self.0 = Chunks::Many(Arc::new(chunks));
                }
                old
            }
            Chunks::Many(chunks) => {
                let chunks = Arc::make_mut(chunks);
                let place = place(chunks, &pod.uid);
                let (old, rest) = insert(own(&mut chunks[place]), pod);
                if let Some(rest) = rest {
                    chunks.insert(place + 1, Arc::new(rest));
                }
                old
            }
        }
    }

    /// Replaces a pod of the set by its newer state; of another pod, it takes nothing.
    pub fn replace(&mut self, pod: &Arc<Pod>) {
        // A miss copies nothing.
        if self.get(&pod.uid).is_some() {
            self.insert(Arc::clone(pod));
        }
    }

    /// Removes a pod.
    pub fn remove(&mut self, uid: &Uid) -> Option<Arc<Pod>> {
        // A miss copies nothing.
        self.get(uid)?;
        match &mut self.0 {
            Chunks::None => None,
            Chunks::One(chunk) => {
                let chunk = Arc::make_mut(chunk);
                let pod = chunk.remove(position(chunk, uid).ok()?);
                if chunk.is_empty() {
                    self.0 = Chunks::None;
                }
                Some(pod)
            }
            Chunks::Many(chunks) => {
                let chunks = Arc::make_mut(chunks);
                let place = place(chunks, uid);
                let chunk = Arc::make_mut(&mut chunks[place]);
                let pod = chunk.remove(position(chunk, uid).ok()?);
                shrink(chunks, place);
                if let [only] = &chunks[..] {
                    self.0 = Chunks::One(Arc::clone(only));
                }
                Some(pod)
            }
        }
    }

    fn chunks(&self) -> &[Arc<Chunk>] {
        match &self.0 {
            Chunks::None => &[],
            Chunks::One(chunk) => std::slice::from_ref(chunk),
            Chunks::Many(chunks) => chunks,
        }
    }
}

/// The chunk that a pod of this UID is or would be in.
fn place(chunks: &[Arc<Chunk>], uid: &Uid) -> usize {
    chunks.partition_point(|chunk| chunk[0].uid <= *uid).saturating_sub(1)
}

fn position(chunk: &Chunk, uid: &Uid) -> Result<usize, usize> {
    chunk.binary_search_by(|pod| pod.uid.cmp(uid))
}

/// The chunk for a change that may add a pod: a copy has room for it, so it is made once.
fn own(chunk: &mut Arc<Chunk>) -> &mut Chunk {
    if Arc::get_mut(chunk).is_none() {
        let mut copy = Vec::with_capacity(chunk.len() + 1);
        copy.extend_from_slice(chunk);
        *chunk = Arc::new(copy);
    }
    Arc::make_mut(chunk)
}

/// Returns the pod that is replaced, and the second half of a chunk that is too large.
fn insert(chunk: &mut Chunk, pod: Arc<Pod>) -> (Option<Arc<Pod>>, Option<Chunk>) {
    match position(chunk, &pod.uid) {
        Ok(position) => (Some(std::mem::replace(&mut chunk[position], pod)), None),
        Err(position) => {
            chunk.insert(position, pod);
            let is_full = chunk.len() > CHUNK_MAX;
            (None, is_full.then(|| chunk.split_off(CHUNK_MAX / 2)))
        }
    }
}

/// Joins a chunk that has become small with the next one, so that their number follows that of the
/// pods.
fn shrink(chunks: &mut Vec<Arc<Chunk>>, place: usize) {
    let joined = chunks[place].len() + chunks.get(place + 1).map_or(CHUNK_MAX, |next| next.len());
    if joined <= CHUNK_MAX / 2 {
        let next = chunks.remove(place + 1);
        Arc::make_mut(&mut chunks[place]).extend(next.iter().cloned());
    } else if chunks[place].is_empty() {
        chunks.remove(place);
    }
}

impl PartialEq for PodSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl FromIterator<Arc<Pod>> for PodSet {
    fn from_iter<I: IntoIterator<Item = Arc<Pod>>>(pods: I) -> Self {
        let mut set = Self::default();
        for pod in pods {
            set.insert(pod);
        }
        set
    }
}

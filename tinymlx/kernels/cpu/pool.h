// Threads that wait between calls, and share a call's pieces one by one. One pool a process: a forked child starts its own.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
 public:
  static Pool& of_process(int threads) {
    static std::mutex guard;
    static Pool* pool = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(guard);
    if (!pool || owner != getpid() || pool->threads != threads) {
      // The threads of a parent process are not here, and what they locked stays so: its pool is left alone.
      if (pool && owner == getpid()) delete pool;
      pool = new Pool(threads), owner = getpid();
    }
    return *pool;
  }

  // Calls piece(i) for each i below `count`, on all threads and this one. One call at a time.
  void run(int64_t count, const std::function<void(int64_t)>& piece) {
    if (workers.empty() || count <= 1) {
      for (int64_t i = 0; i < count; i++) piece(i);
      return;
    }
    std::lock_guard<std::mutex> one(running);
    {
      std::lock_guard<std::mutex> lock(mutex);
      job = &piece, pieces = count, next.store(0), busy = (int)workers.size(), turn.fetch_add(1);
    }
    wake.notify_all();
    take();
    for (int spin = 0; spin < SPINS && busy.load() > 0; spin++) pause();
    std::unique_lock<std::mutex> lock(mutex);
    done.wait(lock, [&] { return busy.load() == 0; });
  }

  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      ending = true, turn.fetch_add(1);
    }
    wake.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

 private:
  static constexpr int SPINS = 2000;  // some 20 us: the next call of a token comes about then

  explicit Pool(int threads) : threads(threads) {
    for (int i = 1; i < threads; i++) workers.emplace_back([this] { work(); });
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  void take() {
    for (int64_t i; (i = next.fetch_add(1)) < pieces;) (*job)(i);
  }

  void work() {
    for (int seen = 0;;) {
      for (int spin = 0; spin < SPINS && turn.load() == seen; spin++) pause();
      {
        std::unique_lock<std::mutex> lock(mutex);
        wake.wait(lock, [&] { return turn.load() != seen; });
        seen = turn.load();
        if (ending) return;
      }
      take();
      std::lock_guard<std::mutex> lock(mutex);
      if (--busy == 0) done.notify_one();
    }
  }

  const int threads;
  std::vector<std::thread> workers;
  std::mutex running, mutex;
  std::condition_variable wake, done;
  const std::function<void(int64_t)>* job = nullptr;
  int64_t pieces = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int> busy{0}, turn{0};
  bool ending = false;
};

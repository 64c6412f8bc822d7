import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

/**
 * Takes locks of Curator in a process of its own: the {@code taker} program's counterpart.
 *
 * <p>{@code CuratorLock HOSTS}, then commands on standard input, answers on standard output:
 *
 * <pre>
 * take NAME              granted, when its turn has come
 * try NAME               granted or busy
 * semaphore NAME         granted or busy, of a semaphore that is used as a mutex
 * read NAME, write NAME  granted, when its turn has come in a read-write lock
 * tryread NAME, trywrite NAME
 *                        granted or busy
 * release                released
 * count NAME PATH TIMES  counted, after so many rounds of take, read, write, release
 * contenders NAME        contenders, and what the nodes of those say that it sees in the line
 * </pre>
 *
 * <p>It says {@code ready} first, and ends with its input.
 */
public class CuratorLock {
  private static final byte[] NOTE = "theirs".getBytes(StandardCharsets.UTF_8);

  private final CuratorFramework client;
  private InterProcessMutex held;

  private CuratorLock(String hosts) throws Exception {
    client =
        CuratorFrameworkFactory.builder()
            .connectString(hosts)
            .sessionTimeoutMs(2000)
            .retryPolicy(new ExponentialBackoffRetry(100, 10))
            .build();
    client.start();
    client.blockUntilConnected();
  }

  private InterProcessMutex mutex(String name) {
    return new InterProcessMutex(client, name) {
      @Override
      protected byte[] getLockNodeBytes() {
        return NOTE;
      }
    };
  }

  private InterProcessReadWriteLock both(String name) {
    return new InterProcessReadWriteLock(client, name);
  }

  private String take(InterProcessMutex lock) throws Exception {
    lock.acquire();
    held = lock;
    return "granted";
  }

  private String attempt(InterProcessMutex lock) throws Exception {
    if (!lock.acquire(0, TimeUnit.SECONDS)) {
      return "busy";
    }
    held = lock;
    return "granted";
  }

  private String semaphore(String name) throws Exception {
    InterProcessSemaphoreMutex lock = new InterProcessSemaphoreMutex(client, name);
    return lock.acquire(0, TimeUnit.SECONDS) ? "granted" : "busy";
  }

  private String release() throws Exception {
    held.release();
    return "released";
  }

  private String count(String name, Path path, int times) throws Exception {
    for (int i = 0; i < times; i++) {
      InterProcessMutex lock = mutex(name);
      lock.acquire();
      try {
        Files.writeString(path, "" + (Integer.parseInt(Files.readString(path)) + 1));
      } finally {
        lock.release();
      }
    }
    return "counted";
  }

  private String contenders(String name) throws Exception {
    StringBuilder all = new StringBuilder("contenders");
    Collection<String> nodes = mutex(name).getParticipantNodes();
    for (String node : nodes) {
      byte[] data = client.getData().forPath(node);
      all.append(' ').append(new String(data, StandardCharsets.UTF_8).lines().findFirst().orElse(""));
    }
    return all.toString();
  }

  private String obey(String[] words) throws Exception {
    switch (words[0]) {
      case "take":
        return take(mutex(words[1]));
      case "try":
        return attempt(mutex(words[1]));
      case "semaphore":
        return semaphore(words[1]);
      case "read":
        return take(both(words[1]).readLock());
      case "write":
        return take(both(words[1]).writeLock());
      case "tryread":
        return attempt(both(words[1]).readLock());
      case "trywrite":
        return attempt(both(words[1]).writeLock());
      case "release":
        return release();
      case "count":
        return count(words[1], Path.of(words[2]), Integer.parseInt(words[3]));
      case "contenders":
        return contenders(words[1]);
      default:
        return "unknown " + words[0];
    }
  }

  public static void main(String[] args) throws Exception {
    CuratorLock taker = new CuratorLock(args[0]);
    System.out.println("ready");
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      System.out.println(taker.obey(line.trim().split(" ")));
    }
    // Ends here, threads of the client or not, and leaves its session to the server.
    System.exit(0);
  }
}
